"""Networks of transformers as their configurations make them, with random weights: those that `real_sizes` has not.

For an environment of its own, with torch==2.13.0, onnx, onnxscript and transformers; then `benchmarks.latency`:

    python -m benchmarks.hub_networks FOLDER                                   # or names behind it
    python -m benchmarks.latency --models FOLDER/*.onnx --threads 1 --slowest 3

Sizes are fixed. Where a default is too large for a benchmark, fewer layers, words or channels stand in its place. With
`--open` all sizes are open that the exporter leaves so, and a line says what each is measured with:

    python -m benchmarks.hub_networks --open FOLDER | while read name sizes
    do python -m benchmarks.latency --models FOLDER/$name.onnx --threads 1 --runtimes ours_fixed --size $sizes
    done
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as hub
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]
WORDS = 2000
"""Of a vocabulary: an embedding's rows are read, not computed."""


class First(nn.Module):  # type: ignore[misc]
    """A network of inputs with these names by the first of its results."""

    def __init__(self, body: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.body, self.names, self.fixed = body, names, fixed

    def forward(self, *inputs: Tensor) -> Any:
        """Whatever the network takes."""
        found = self.body(**dict(zip(self.names, inputs, strict=True)), **self.fixed, return_dict=False)
        while isinstance(found, (tuple, list)):
            found = found[0]
        return found


class Tower(nn.Module):  # type: ignore[misc]
    """A part of a network that takes one tensor and gives one."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, signal: Tensor) -> Any:
        """Whatever the part takes."""
        return self.body(signal)


def image(kind: str, size: int, head: str = "Model", **changes: Any) -> Callable[[], Example]:
    """Return what makes a network of one image of ``size`` pixels in height and width."""
    return lambda: (First(_made(kind, head, changes), "pixel_values"), (torch.randn(1, 3, size, size),))


def text(kind: str, tokens: int = 128, **changes: Any) -> Callable[[], Example]:
    """Return what makes a network of so many tokens, none of which is masked."""
    words = torch.randint(0, 1000, (1, tokens)), torch.ones(1, tokens, dtype=torch.long)
    return lambda: (First(_made(kind, "Model", changes), "input_ids", "attention_mask"), words)


def sound(kind: str, **changes: Any) -> Callable[[], Example]:
    """Return what makes a network of a second at 16 kHz."""
    return lambda: (First(_made(kind, "Model", changes), "input_values"), (torch.randn(1, 16000),))


def tower(kind: str, part: str, *shape: int) -> Callable[[], Example]:
    """Return what makes a ``part`` of a network, for a tensor of this shape."""
    return lambda: (Tower(getattr(_made(kind, "Model", {}), part)), (torch.randn(shape),))


def series(kind: str) -> Callable[[], Example]:
    """Return what makes a network of 512 steps of 7 values."""
    changes = {"num_input_channels": 7, "context_length": 512}
    return lambda: (First(_made(kind, "Model", changes), "past_values"), (torch.randn(1, 512, 7),))


def _made(kind: str, head: str, changes: dict[str, Any]) -> nn.Module:
    network: nn.Module = getattr(hub, kind + head)(getattr(hub, kind + "Config")(**changes))
    return network


SMALL: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
TINY: dict[str, Any] = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
STAGES: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [64, 128, 288, 672], "depths": [2, 5, 13, 1]}
NECK: dict[str, Any] = {"neck_hidden_sizes": [48, 96, 192, 384], "fusion_hidden_size": 64}
MODERN: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}

NETWORKS: dict[str, Callable[[], Example]] = {
    "ast": lambda: (First(_made("AST", "Model", {**TINY, "max_length": 256}), "input_values"),
                    (torch.randn(1, 256, 128),)),
    "bit": image("Bit", 224),
    "clip_vision": image("CLIPVision", 224, **SMALL),
    "cvt": image("Cvt", 224),
    "dac_encoder": tower("Dac", "encoder", 1, 1, 16000),
    "data2vec_audio": sound("Data2VecAudio", num_hidden_layers=4),
    "deberta_v2": text("DebertaV2", **SMALL, num_hidden_layers=6, vocab_size=WORDS, relative_attention=True,
                       pos_att_type=["p2c", "c2p"], position_buckets=256),
    "dinov2_small": image("Dinov2", 224, hidden_size=384, num_attention_heads=6),
    "dpt_small": image("DPT", 384, "ForDepthEstimation", **SMALL, **NECK),
    "electra": text("Electra"),
    "encodec_encoder": tower("Encodec", "encoder", 1, 1, 24000),
    "fnet": lambda: (First(_made("FNet", "Model", {"vocab_size": WORDS, "num_hidden_layers": 6}), "input_ids"),
                     (torch.randint(0, 1000, (1, 128)),)),
    "focalnet": image("FocalNet", 224),
    "funnel": text("Funnel", vocab_size=WORDS, d_model=384, n_head=6, d_head=64, d_inner=1536),
    "hiera": image("Hiera", 224),
    "hifigan": lambda: (First(_made("SpeechT5HifiGan", "", {}), "spectrogram"), (torch.randn(1, 64, 80),)),
    "hubert": sound("Hubert", num_hidden_layers=4),
    "levit": image("Levit", 224),
    "mamba": lambda: (First(_made("Mamba", "Model", {"vocab_size": WORDS, "hidden_size": 384, "num_hidden_layers": 6}),
                            "input_ids", use_cache=False), (torch.randint(0, 1000, (1, 64)),)),
    "mobilebert": text("MobileBert", vocab_size=WORDS),
    "mobilenet_v1": image("MobileNetV1", 224),
    "mobilenet_v2": image("MobileNetV2", 224),
    "mobilevit": image("MobileViT", 256),
    "mobilevit_v2": image("MobileViTV2", 256),
    "modernbert": text("ModernBert", **MODERN, vocab_size=WORDS, num_hidden_layers=8),
    "moonshine_encoder": tower("Moonshine", "encoder", 1, 16000),
    "patchtsmixer": series("PatchTSMixer"),
    "poolformer": image("PoolFormer", 224),
    "pvt": image("Pvt", 224),
    "regnet": image("RegNet", 224, **STAGES, groups_width=16),
    "resnet": image("ResNet", 224),
    "roberta": text("Roberta", vocab_size=WORDS, num_hidden_layers=6),
    "rt_detr": lambda: (First(_made("RTDetr", "Model", {}), "pixel_values"), (torch.randn(1, 3, 640, 640),)),
    "segformer": image("Segformer", 256, "ForSemanticSegmentation"),
    "sew": sound("SEW", num_hidden_layers=4),
    "superpoint": image("SuperPoint", 240, "ForKeypointDetection"),
    "swiftformer": image("SwiftFormer", 224),
    "swin2sr": image("Swin2SR", 64, "ForImageSuperResolution", embed_dim=60, depths=[6] * 4, num_heads=[6] * 4),
    "textnet": image("TextNet", 320),
    "univnet": lambda: (First(_made("UnivNet", "Model", {}), "input_features", "noise_sequence"),
                        (torch.randn(1, 40, 100), torch.randn(1, 40, 64))),
    "vitdet": image("VitDet", 224, hidden_size=192, num_attention_heads=3, image_size=224),
    "vits_decoder": tower("Vits", "decoder", 1, 192, 60),
    "wav2vec2_conformer": sound("Wav2Vec2Conformer", num_hidden_layers=4),
    "wavlm": sound("WavLM", num_hidden_layers=4),
    "xlnet": text("XLNet", vocab_size=WORDS, d_model=512, n_layer=6, n_head=8, d_inner=2048),
    "yolos_tiny": image("Yolos", 320, **TINY, image_size=[320, 320]),
}  # fmt: skip


CHANNELS = "channels"
AXES = {2: ("batch", "length"), 3: ("batch", CHANNELS, "length"), 4: ("batch", CHANNELS, "height", "width")}
"""What the axes of an input of this rank are called; all but channels are open, where they can be."""


def export(name: str, path: Path) -> None:
    """Write a network of fixed sizes, by the older exporter where the newer one cannot."""
    network, inputs = _network(name)
    with torch.no_grad():
        try:
            torch.onnx.export(network, inputs, path, dynamo=True, external_data=False, verbose=False)
        except (RuntimeError, torch.onnx.errors.OnnxExporterError):
            torch.onnx.export(network, inputs, path, dynamo=False, opset_version=17)


def export_open(name: str, path: Path) -> dict[str, int]:
    """Write a network of all open sizes that can be had; return what they are in the example, but for the batch."""
    network, inputs = _network(name)
    inputs = tuple(torch.cat([tensor, tensor]) for tensor in inputs)  # a size of one is taken for fixed
    any_size = tuple(
        {axis: torch.export.Dim.AUTO for axis, name in enumerate(AXES[tensor.ndim]) if name != CHANNELS}
        for tensor in inputs
    )
    shapes = {"inputs": any_size} if isinstance(network, First) else any_size
    with torch.no_grad():
        program = torch.onnx.export(network, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False)
    model = program.model_proto
    sizes: dict[str, int] = {}
    for value, tensor in zip(model.graph.input, inputs, strict=True):
        for dim, axis, extent in zip(value.type.tensor_type.shape.dim, AXES[tensor.ndim], tensor.shape, strict=True):
            if dim.dim_param:
                name = axis if sizes.get(axis, extent) == extent else f"{axis}_{extent}"
                dim.dim_param, sizes[name] = name, int(extent)
    del model.graph.value_info[:]  # these and outputs have the names before
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    return {axis: extent for axis, extent in sizes.items() if axis != "batch"}


def _network(name: str) -> Example:
    torch.manual_seed(0)
    network, inputs = NETWORKS[name]()
    for module in network.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 1.5)
            module.running_mean.normal_(0, 0.1)
    return network, inputs


def main() -> None:
    """Write the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", action="store_true", help="with open sizes")
    parser.add_argument("folder", type=Path, help="where they are written")
    parser.add_argument("names", nargs="*", choices=[[], *NETWORKS], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.names or NETWORKS:
        path = given.folder / f"{name}.onnx"
        if not given.open:
            export(name, path)
            print(name, flush=True)
            continue
        try:
            sizes = export_open(name, path)
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            print(name, "is not exported with open sizes:", str(error).splitlines()[0], file=sys.stderr)
        else:
            print(name, *(f"{axis}={extent}" for axis, extent in sizes.items()), flush=True)


if __name__ == "__main__":
    main()
