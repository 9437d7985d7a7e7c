"""Train the bundled classifier of digits; write digits.onnx, calibration.npz and evaluation.npz.

The network is small and has one of each thing that a vision model brings to a compiler: plain, strided,
depthwise and pointwise convolutions, batch norms (left unfused), two residual additions, max and average
pooling, and a dense layer. The split, the seed and the order of all sums are fixed, so two runs on one kind
of CPU write the same bytes; another kind of CPU may round differently and reach slightly other weights.

    pip install "forge-pipeline[examples]"
    python examples/digits/train.py
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnx
import onnxruntime
import torch
from onnxscript import optimizer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

SEED = 7
CALIBRATION, EVALUATION = 200, 500  # of 1797 images; the others train
EPOCHS, BATCH = 120, 32
OPSET = 18
FLOOR = 0.98  # below this the script writes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Images ``x``, float32 [N, 1, 8, 8] in 0..1, and their digits ``y``, int64 [N]."""

    x: np.ndarray
    y: np.ndarray


def split() -> dict[str, Part]:
    """Return the three disjoint parts; the same ones every time."""
    pixels, digits = load_digits(return_X_y=True)
    x = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = digits.astype(np.int64)
    order = np.random.RandomState(SEED).permutation(len(x))  # a stream that numpy keeps frozen
    bounds = {
        "evaluation": order[:EVALUATION],
        "calibration": order[EVALUATION : EVALUATION + CALIBRATION],
        "train": order[EVALUATION + CALIBRATION :],
    }
    return {name: Part(x=x[index], y=y[index]) for name, index in bounds.items()}


def conv_bn(channels_in: int, channels_out: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution that keeps the image size at stride 1, then batch norm."""
    conv = nn.Conv2d(channels_in, channels_out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


class DigitsNet(nn.Module):
    """[N, 1, 8, 8] -> [N, 10] logits; about 25,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(1, 24, 3)
        self.plain = nn.Sequential(conv_bn(24, 24, 3), nn.ReLU(), conv_bn(24, 24, 3))
        self.down = nn.Sequential(conv_bn(24, 24, 3, stride=2, groups=24), nn.ReLU(), conv_bn(24, 48, 1), nn.ReLU())
        self.inverted = nn.Sequential(
            conv_bn(48, 96, 1), nn.ReLU6(), conv_bn(96, 96, 3, groups=96), nn.ReLU6(), conv_bn(96, 48, 1)
        )
        self.dense = nn.Linear(48, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        value = functional.relu(self.stem(image))
        value = functional.relu(value + self.plain(value))
        value = self.down(value)
        value = value + self.inverted(value)
        value = functional.max_pool2d(value, 2)
        value = functional.avg_pool2d(value, 2).reshape(-1, 48)
        return self.dense(value)


def distort(images: Tensor) -> Tensor:
    """Turn, scale and shift each image a little, as another hand would have."""
    count = len(images)
    angle = (torch.rand(count) - 0.5) * 0.5
    scale = 1.0 + (torch.rand(count) - 0.5) * 0.3
    shift = (torch.rand(count, 2) - 0.5) * 0.4
    matrix = torch.stack(
        [
            torch.stack([scale * angle.cos(), -scale * angle.sin(), shift[:, 0]], dim=1),
            torch.stack([scale * angle.sin(), scale * angle.cos(), shift[:, 1]], dim=1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(part: Part) -> DigitsNet:
    """Return the network after EPOCHS passes of AdamW under a one-cycle learning rate, in evaluation mode."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    net = DigitsNet()
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    steps = len(x) // BATCH
    adam = torch.optim.AdamW(net.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=4e-3, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(x))
        for step in range(steps):
            index = order[step * BATCH : (step + 1) * BATCH]
            loss = functional.cross_entropy(net(distort(x[index])), y[index], label_smoothing=0.05)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    return net.eval()


def export(net: DigitsNet, path: Path) -> None:
    """Write the network as ONNX with a free batch size and its batch norms in place, for `fold` to merge."""
    program = torch.onnx.export(
        net,
        (torch.zeros(2, 1, 8, 8),),
        dynamo=True,
        opset_version=OPSET,
        optimize=False,  # it would fuse the batch norms; the two passes below only tidy up
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        verbose=False,
    )
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)
    model = program.model_proto
    for traced in (
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        traced.ClearField("metadata_props")  # stack traces of whoever ran this script
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def accuracy(path: Path, part: Part) -> float:
    """Return the share of ``part`` that the exported file gets right."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": part.x})
    return float((logits.argmax(axis=1) == part.y).mean())


def main() -> None:
    """Train, export and measure; leave the folder's files as they were if the model is not good enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    parts = split()
    draft = out / ".digits.onnx"
    export(train(parts["train"]), draft)
    score = {name: accuracy(draft, part) for name, part in parts.items()}
    print("  ".join(f"{name} {100 * value:.2f} %" for name, value in score.items()))
    if score["evaluation"] < FLOOR:
        draft.unlink()
        raise SystemExit(f"evaluation accuracy {score['evaluation']:.4f} is below {FLOOR}: nothing written")
    draft.replace(out / "digits.onnx")
    for name in ("calibration", "evaluation"):
        np.savez_compressed(out / f"{name}.npz", x=parts[name].x, y=parts[name].y)


if __name__ == "__main__":
    main()
