"""Decoders like Llama with random weights in blocks of 32, the very same bits as ONNX and as llama.cpp's GGUF.

A weight is a code of four or eight bits times a scale in half precision for each block of a row, which is Q4_0 and
Q8_0 in GGUF, and MatMulNBits without zero points in ONNX. Vectors of norms are ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK = 32
HEAD = 64
"""Numbers of a head."""
EPSILON, BASE = 1e-5, 10000.0
LONGEST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a decoder: ``groups`` heads of keys, ``hidden`` numbers inside a feed-forward network."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int = 32000

    def products(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name in GGUF of each weight of a product, its columns, and its steps."""
        keys = self.groups * HEAD
        for layer in range(self.layers):
            for name, columns, steps in (
                ("attn_q", self.heads * HEAD, self.width), ("attn_k", keys, self.width), ("attn_v", keys, self.width),
                ("attn_output", self.width, self.heads * HEAD), ("ffn_gate", self.hidden, self.width),
                ("ffn_up", self.hidden, self.width), ("ffn_down", self.width, self.hidden),
            ):  # fmt: skip
                yield f"blk.{layer}.{name}.weight", columns, steps
        yield "output.weight", self.vocabulary, self.width

    @property
    def read(self) -> int:
        """How many weights a token reads: all but the table of words."""
        return sum(columns * steps for _, columns, steps in self.products())

    @property
    def weights(self) -> int:
        """How many weights there are."""
        return self.read + self.vocabulary * self.width


DECODERS = {
    "llama_0.1b": Decoder(layers=12, width=768, heads=12, groups=4, hidden=2048),
    "llama_0.4b": Decoder(layers=24, width=1024, heads=16, groups=4, hidden=3584),
}


def bytes_read(decoder: Decoder, bits: int) -> int:
    """Return the bytes of weights that a token reads, with a scale of two bytes for each block."""
    return decoder.read * (BLOCK * bits // 8 + 2) // BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Weights of a product: ``codes`` (columns, steps), 0 to 15 or int8, and ``scales`` (columns, blocks), float16."""

    codes: np.ndarray
    scales: np.ndarray


def weights_of(decoder: Decoder, bits: int) -> Iterator[tuple[str, Blocks]]:
    """Yield the weights of each product, and the table of words, from a fixed seed."""
    random = np.random.default_rng(0)
    for name, columns, steps in (*decoder.products(), ("token_embd.weight", decoder.vocabulary, decoder.width)):
        low, high = (0, 16) if bits == 4 else (-127, 128)
        codes = random.integers(low, high, (columns, steps), np.uint8 if bits == 4 else np.int8)
        deviation = (high - low) / 12**0.5
        gain = 1.0 if name == "token_embd.weight" else steps**-0.5
        scales = random.uniform(0.5, 1.5, (columns, steps // BLOCK)) * gain / deviation
        yield name, Blocks(codes=codes, scales=scales.astype(np.float16))


def _interleaved(blocks: Blocks) -> Blocks:
    """Return rows of heads in llama.cpp's order: numbers that turn together are neighbours, not half a head apart."""

    def turned(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, 2, HEAD // 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)

    return Blocks(codes=turned(blocks.codes), scales=turned(blocks.scales))


def write_gguf(path: Path, decoder: Decoder, bits: int) -> None:
    """Write what llama.cpp loads."""
    import gguf

    kind = gguf.GGMLQuantizationType.Q4_0 if bits == 4 else gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(decoder.width)
    writer.add_block_count(decoder.layers)
    writer.add_feed_forward_length(decoder.hidden)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.groups)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(BASE)
    writer.add_vocab_size(decoder.vocabulary)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0 if bits == 4 else gguf.LlamaFileType.MOSTLY_Q8_0)
    ones = np.ones(decoder.width, np.float32)
    for name, blocks in weights_of(decoder, bits):
        named = _interleaved(blocks) if ".attn_q." in name or ".attn_k." in name else blocks
        writer.add_tensor(name, _packed(named, bits), raw_dtype=kind)
    for layer in range(decoder.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _packed(blocks: Blocks, bits: int) -> np.ndarray:
    """Return the bytes of GGUF's blocks (columns, bytes): a scale, then codes, of four bits those 16 apart together."""
    columns, steps = blocks.codes.shape
    codes: np.ndarray = blocks.codes.reshape(columns, steps // BLOCK, BLOCK).view(np.uint8)
    if bits == 4:
        codes = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
    return np.concatenate([blocks.scales[..., None].view(np.uint8), codes], axis=-1).reshape(columns, -1)


class _Graph:
    """Nodes in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        name = result or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: object, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def extent(self, name: str, axis: int) -> str:
        return self("Gather", self("Shape", name), self.constant(axis))

    def product(self, x: str, blocks: Blocks, bits: int, result: str = "") -> str:
        """Multiply by weights in blocks; activations may be rounded to int8."""
        columns, steps = blocks.codes.shape
        codes = blocks.codes[:, ::2] | blocks.codes[:, 1::2] << 4 if bits == 4 else blocks.codes.view(np.uint8) ^ 128
        packed = self.constant(codes.reshape(columns, steps // BLOCK, -1), np.uint8)
        return self(
            "MatMulNBits", x, packed, self.constant(blocks.scales, np.float32), result=result, domain="com.microsoft",
            K=steps, N=columns, bits=bits, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def heads(self, x: str, count: int) -> str:
        return self("Transpose", self("Reshape", x, self.constant([1, -1, count, HEAD])), perm=[0, 2, 1, 3])

    def norm(self, x: str) -> str:
        two = self.constant(2, np.float32)
        mean = self("ReduceMean", self("Pow", x, two), self.constant([-1]), keepdims=1)
        root = self("Sqrt", self("Add", mean, self.constant(EPSILON, np.float32)))
        return self("Mul", x, self("Reciprocal", root))

    def turned(self, x: str, cosines: str, sines: str) -> str:
        half, ends, axis = self.constant([HEAD // 2]), self.constant([HEAD]), self.constant([3])
        low, high = self("Slice", x, self.constant([0]), half, axis), self("Slice", x, half, ends, axis)
        other = self("Concat", self("Neg", high), low, axis=3)
        return self("Add", self("Mul", x, cosines), self("Mul", other, sines))

    def repeated(self, x: str, groups: int, heads: int) -> str:
        """Repeat heads of keys for those of queries that share them."""
        tokens = self("Unsqueeze", self.extent(x, 2), self.constant([0]))
        parts = [self.constant([1, groups, heads // groups]), tokens, self.constant([HEAD])]
        wide = self("Expand", self("Unsqueeze", x, self.constant([2])), self("Concat", *parts, axis=0))
        return self("Reshape", wide, self.constant([1, heads, -1, HEAD]))


def to_onnx(decoder: Decoder, bits: int) -> onnx.ModelProto:
    """Return (1, tokens) and caches to the scores of the newest token, and caches with all tokens."""
    g, weights = _Graph(), dict(weights_of(decoder, bits))
    groups, heads = decoder.groups, decoder.heads
    table = weights.pop("token_embd.weight")
    codes = table.codes[:, ::2] | table.codes[:, 1::2] << 4 if bits == 4 else table.codes.view(np.uint8) ^ 128
    x = g(
        "GatherBlockQuantized", g.constant(codes, np.uint8), "tokens", g.constant(table.scales, np.float32),
        domain="com.microsoft", bits=bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    before, count = g.extent("past.0.key", 2), g.extent("tokens", 1)
    zero, one = g.constant(0), g.constant(1)
    column = g("Unsqueeze", g("Add", g("Range", zero, count, one), before), g.constant([1]))
    turns = g.constant(BASE ** (-np.arange(0, HEAD, 2) / HEAD), np.float32)
    half = g("Mul", g("Cast", column, to=TensorProto.FLOAT), turns)
    angles = g("Concat", half, half, axis=1)
    cosines, sines = g("Cos", angles), g("Sin", angles)
    seen = g("LessOrEqual", g("Range", zero, g("Add", before, count), one), column)
    mask = g("Where", seen, g.constant(0, np.float32), g.constant(np.finfo(np.float32).min, np.float32))
    for layer in range(decoder.layers):

        def product(x: str, name: str, layer: int = layer) -> str:
            return g.product(x, weights.pop(f"blk.{layer}.{name}.weight"), bits)

        y = g.norm(x)
        query, key = (
            g.turned(g.heads(product(y, name), size), cosines, sines)
            for name, size in (("attn_q", heads), ("attn_k", groups))
        )
        value = g.heads(product(y, "attn_v"), groups)
        key = g("Concat", f"past.{layer}.key", key, axis=2, result=f"present.{layer}.key")
        value = g("Concat", f"past.{layer}.value", value, axis=2, result=f"present.{layer}.value")
        keys = g("Transpose", g.repeated(key, groups, heads), perm=[0, 1, 3, 2])
        scores = g("Mul", g("MatMul", query, keys), g.constant(HEAD**-0.5, np.float32))
        mixed = g("MatMul", g("Softmax", g("Add", scores, mask), axis=-1), g.repeated(value, groups, heads))
        joined = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([1, -1, heads * HEAD]))
        x = g("Add", x, product(joined, "attn_output"))
        y = g.norm(x)
        gate = product(y, "ffn_gate")
        inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), product(y, "ffn_up"))
        x = g("Add", x, product(inner, "ffn_down"))
    newest = g("Slice", x, g.constant([-1]), g.constant([np.iinfo(np.int64).max]), g.constant([1]))
    g.product(g.norm(newest), weights.pop("output.weight"), bits, "logits")
    names = [f"{layer}.{part}" for layer in range(decoder.layers) for part in ("key", "value")]
    value_of = helper.make_tensor_value_info
    inputs = [value_of("tokens", TensorProto.INT64, [1, "s"])]
    inputs += [value_of(f"past.{n}", TensorProto.FLOAT, [1, groups, "past", HEAD]) for n in names]
    outputs = [value_of("logits", TensorProto.FLOAT, [1, 1, decoder.vocabulary])]
    outputs += [value_of(f"present.{n}", TensorProto.FLOAT, [1, groups, "all", HEAD]) for n in names]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
