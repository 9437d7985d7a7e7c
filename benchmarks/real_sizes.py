"""Transformers and their like at real sizes, with random weights, as PyTorch's exporter writes them.

For an environment of its own, with torch==2.13.0, onnx, onnxscript and transformers; then `benchmarks.latency`:

    python -m benchmarks.real_sizes FOLDER                                   # or names behind it
    python -m benchmarks.latency --models FOLDER/*.onnx --threads 1 --slowest 3 --size batch=1 tokens=128 past=128
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hub
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A network, its inputs (a tensor or several), and the names of their open sizes by input and axis."""

TEXT = {"tokens": {0: "batch", 1: "tokens"}, "mask": {0: "batch", 1: "tokens"}}
LENGTH, PAST = 24, 12
"""Of what a network is traced with; neither stays in what is exported."""


class Encoder(nn.Module):  # type: ignore[misc]
    """A network of texts by its last hidden state; ``mask`` is 1 where there is a token."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(batch, tokens) twice to (batch, tokens, width)."""
        result: Tensor = self.body(input_ids=tokens, attention_mask=mask).last_hidden_state
        return result


class Image(nn.Module):  # type: ignore[misc]
    """A network of one input by the first of its results."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, image: Tensor) -> Tensor:
        """Whatever the network takes."""
        result: Tensor = self.body(image, return_dict=False)[0]
        return result


class Step(nn.Module):  # type: ignore[misc]
    """A decoder's newest token; keys and values of those before go in and out."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        """(1, 1) and twice (1, heads, past, width) a layer to (1, 1, vocabulary) and the same, a token longer."""
        cache = hub.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        found = self.body(input_ids=tokens, past_key_values=cache, use_cache=True)
        kept = (part for layer in found.past_key_values.layers for part in (layer.keys, layer.values))
        return found.logits, *kept


class Translation(nn.Module):  # type: ignore[misc]
    """An encoder and its decoder in one call."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        """(1, tokens) and (1, target) to (1, target, vocabulary)."""
        result: Tensor = self.body(input_ids=tokens, decoder_input_ids=target, use_cache=False).logits
        return result


class Reader(nn.Module):  # type: ignore[misc]
    """Convolutions and two layers of LSTM over the columns of a line of text (Shi et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        plan = [(64, (2, 2)), (128, (2, 2)), (256, None), (256, (2, 1)), (512, None), (512, (2, 1)), (512, None)]
        before = 1
        for width, pool in plan:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool else []
            before = width
        self.columns = nn.Sequential(*layers, nn.MaxPool2d((2, 1)))
        self.text = nn.LSTM(512, 256, num_layers=2, bidirectional=True)
        self.letters = nn.Linear(512, 96)

    def forward(self, image: Tensor) -> Tensor:
        """(1, 1, 32, width) to (width / 4, 1, letters)."""
        result: Tensor = self.letters(self.text(self.columns(image).squeeze(2).permute(2, 0, 1))[0])
        return result


class UNet(nn.Module):  # type: ignore[misc]
    """Four levels down and up (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(self._pair(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
        self.up = nn.ModuleList(self._pair(2 * w, w) for w in widths[-2::-1])
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(before: int, width: int) -> nn.Sequential:
        convolutions = ((before, width), (width, width))
        return nn.Sequential(
            *(each for a, b in convolutions for each in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()))
        )

    def forward(self, image: Tensor) -> Tensor:
        """(1, 3, height, width) to (1, 2, height, width)."""
        kept: list[Tensor] = []
        for level in self.down:
            image = level(image if not kept else nn.functional.max_pool2d(image, 2))
            kept.append(image)
        for wider, level, before in zip(self.wider, self.up, kept[-2::-1], strict=True):
            image = level(torch.cat([before, wider(image)], 1))
        result: Tensor = self.last(image)
        return result


def text(kind: str, **settings: Any) -> Example:
    """Return an encoder of any number of texts of any length."""
    tokens = torch.randint(0, 1000, (2, LENGTH))
    body = getattr(hub, f"{kind}Model")(getattr(hub, f"{kind}Config")(**settings))
    return Encoder(body), (tokens, torch.ones_like(tokens)), TEXT


def image(kind: str, head: str = "Model", size: int = 224, **settings: Any) -> Example:
    """Return a network of one image."""
    body = getattr(hub, kind + head)(getattr(hub, f"{kind}Config")(**settings))
    return Image(body), (torch.randn(1, 3, size, size),), {}


def step(kind: str, head: str, layers: int, heads: int, **settings: Any) -> Example:
    """Return a decoder's step behind any number of tokens, with keys of 64 numbers."""
    body = getattr(hub, kind + head)(getattr(hub, f"{kind}Config")(**settings))
    past = [torch.randn(1, heads, PAST, 64) for _ in range(2 * layers)]
    return Step(body), (torch.zeros(1, 1, dtype=torch.int64), past), {"past": [{2: "past"} for _ in past]}


def audio(name: str) -> Example:
    """Return a network of thirty seconds of frames, or of one of samples."""
    if name == "whisper":
        config = hub.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
        return Image(hub.WhisperModel(config).encoder), (torch.randn(1, 80, 3000),), {}
    return Image(hub.Wav2Vec2Model(hub.Wav2Vec2Config())), (torch.randn(1, 16000),), {}


def t5() -> Example:
    """Return T5-small, encoder and decoder, of texts of any length."""
    config = hub.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, d_kv=64)
    tokens = torch.randint(0, 1000, (1, LENGTH))
    sizes = {"tokens": {1: "tokens"}, "target": {1: "target"}}
    return Translation(hub.T5ForConditionalGeneration(config)), (tokens, tokens[:, :PAST]), sizes


def detr() -> Example:
    """Return DETR with a ResNet-50, of an image of 512 x 512."""
    backbone = hub.ResNetConfig(out_features=["stage4"])
    config = hub.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, use_pretrained_backbone=False
    )
    return Image(hub.DetrForObjectDetection(config)), (torch.randn(1, 3, 512, 512),), {}


SMALL = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
LLAMA = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 8000}  # fmt: skip

NETWORKS: dict[str, Callable[[], Example]] = {
    "bert_base": lambda: text("Bert"),
    "distilbert": lambda: text("DistilBert"),
    "minilm": lambda: text("Bert", num_hidden_layers=6, **SMALL),
    "albert_base": lambda: text("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "vit_tiny": lambda: image("ViT", hidden_size=192, num_attention_heads=3, intermediate_size=768),
    "vit_small": lambda: image("ViT", hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "swin_tiny": lambda: image("Swin"),
    "convnext_tiny": lambda: image("ConvNext"),
    "segformer_b0": lambda: image("Segformer", "ForSemanticSegmentation", 512),
    "detr_resnet50": detr,
    "unet": lambda: (UNet(), (torch.randn(1, 3, 256, 256),), {}),
    "crnn": lambda: (Reader(), (torch.randn(1, 1, 32, 200),), {}),
    "whisper_tiny_encoder": lambda: audio("whisper"),
    "wav2vec2_base": lambda: audio("wav2vec2"),
    "t5_small": t5,
    "gpt2_step": lambda: step("GPT2", "LMHeadModel", 12, 12),
    "llama_step": lambda: step("Llama", "ForCausalLM", 8, 2, **LLAMA),
}


TRACED = {"t5_small", "swin_tiny"}
"""What the exporter of graphs cannot read; the older one, of TorchScript, writes them."""


def export(name: str, path: Path) -> None:
    """Write a network to a file, weights and all."""
    torch.manual_seed(0)
    network, inputs, sizes = NETWORKS[name]()
    if name in TRACED:
        names = list(network.forward.__code__.co_varnames[1 : 1 + len(inputs)])
        torch.onnx.export(network.eval(), inputs, str(path), dynamo=False, input_names=names, dynamic_axes=sizes)
        return
    open_sizes: Any = {key: sizes.get(key) for key in network.forward.__code__.co_varnames[1 : 1 + len(inputs)]}
    program = torch.onnx.export(
        network.eval(), inputs, dynamo=True, dynamic_shapes=open_sizes if sizes else None, verbose=False
    )
    if program is None:
        raise RuntimeError(f"{name} was not exported")
    program.save(str(path), external_data=False)


def main() -> None:
    """Write the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where they are written, those that are there are left")
    parser.add_argument("names", nargs="*", choices=[[], *NETWORKS], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.names or NETWORKS:
        path = given.folder / f"{name}.onnx"
        if not path.exists():
            export(name, path)
        print(name, path.stat().st_size >> 20, "MiB")


if __name__ == "__main__":
    main()
