"""Small decoders as exporters write them: keys and values of earlier tokens in, those of all tokens out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

VOCABULARY, WIDTH, HEADS, SIZE = 50, 64, 4, 16
KEPT = Options(generator="auto", opt_level=3, float16=False, channel_layout=None, state="auto", state_max=32)


class _Graph:
    """Nodes in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def __call__(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        name = result or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: object, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(0, 0.3, shape), np.float32)

    def extent(self, name: str, axis: int) -> str:
        return self("Gather", self("Shape", name), self.constant(axis))

    def heads(self, x: str, count: int) -> str:
        split = self(
            "Reshape", self("MatMul", x, self.weight(WIDTH, count * SIZE)), self.constant([1, -1, count, SIZE])
        )
        return self("Transpose", split, perm=[0, 2, 1, 3])

    def turned(self, x: str, angles: str) -> str:
        half, ends = self.constant([SIZE // 2]), self.constant([SIZE])
        low = self("Slice", x, self.constant([0]), half, self.constant([3]))
        high = self("Slice", x, half, ends, self.constant([3]))
        other = self("Concat", self("Neg", high), low, axis=3)
        return self("Add", self("Mul", x, self("Cos", angles)), self("Mul", other, self("Sin", angles)))

    def repeated(self, x: str, groups: int) -> str:
        """Repeat heads of keys, as a product by all heads of queries takes them."""
        if groups == HEADS:
            return x
        tokens = self("Unsqueeze", self.extent(x, 2), self.constant([0]))
        parts = [self.constant([1, groups, HEADS // groups]), tokens, self.constant([SIZE])]
        wide = self("Expand", self("Unsqueeze", x, self.constant([2])), self("Concat", *parts, axis=0))
        return self("Reshape", wide, self.constant([1, HEADS, -1, SIZE]))


def decoder(*, groups: int = HEADS, rotary: bool = False, layers: int = 2, guarded: bool = False) -> onnx.ModelProto:
    """Return a decoder of batch one: GPT-like with learned places, or Llama-like with turned heads and fewer keys.

    ``guarded``: the first two tokens see nothing, for which attention gives zero, as torch exports it.
    """
    g = _Graph()
    before, tokens = g.extent("past.0.key", 2), g.extent("ids", 1)
    zero, one = g.constant(0), g.constant(1)
    places = g("Add", g("Range", zero, tokens, one), before)
    column = g("Unsqueeze", places, g.constant([1]))
    x = g("Gather", g.weight(VOCABULARY, WIDTH), "ids")
    if rotary:
        turns = g.constant(10000.0 ** (-np.arange(0, SIZE, 2) / SIZE), np.float32)
        half = g("Mul", g("Cast", column, to=TensorProto.FLOAT), turns)
        angles = g("Concat", half, half, axis=1)
    else:
        x = g("Add", x, g("Gather", g.weight(64, WIDTH), places))
    seen = g("LessOrEqual", g("Range", zero, g("Add", before, tokens), one), column)
    if guarded:
        seen = g("And", seen, g("Greater", column, one))
    lowest = g.constant(-np.inf if guarded else np.finfo(np.float32).min, np.float32)
    mask = g("Where", seen, g.constant(0, np.float32), lowest)
    for layer in range(layers):
        y = g("LayerNormalization", x, g.constant(np.ones(WIDTH), np.float32), axis=-1)
        query, key, value = (g.heads(y, count) for count in (HEADS, groups, groups))
        if rotary:
            query, key = g.turned(query, angles), g.turned(key, angles)
        key = g("Concat", f"past.{layer}.key", key, axis=2, result=f"present.{layer}.key")
        value = g("Concat", f"past.{layer}.value", value, axis=2, result=f"present.{layer}.value")
        keys = g("Transpose", g.repeated(key, groups), perm=[0, 1, 3, 2])
        scores = g("Div", g("MatMul", query, keys), g.constant(4, np.float32))
        shares = g("Softmax", g("Add", scores, mask), axis=-1)
        if guarded:
            shares = g("Where", g("IsNaN", shares), g.constant(0, np.float32), shares)
        mixed = g("Transpose", g("MatMul", shares, g.repeated(value, groups)), perm=[0, 2, 1, 3])
        joined = g("Reshape", mixed, g.constant([1, -1, WIDTH]))
        x = g("Add", x, g("MatMul", joined, g.weight(WIDTH, WIDTH)))
    g("MatMul", x, g.weight(WIDTH, VOCABULARY), result="logits")
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    value_of = helper.make_tensor_value_info
    inputs = [value_of("ids", TensorProto.INT64, [1, "s"])]
    inputs += [value_of(f"past.{n}", TensorProto.FLOAT, [1, groups, "past", SIZE]) for n in names]
    outputs = [value_of("logits", TensorProto.FLOAT, [1, "s", VOCABULARY])]
    outputs += [
        helper.make_tensor_value_info(f"present.{n}", TensorProto.FLOAT, [1, groups, "all", SIZE]) for n in names
    ]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def counter() -> onnx.ModelProto:
    """Return a model of two states of one shape that change places: total, and the step before."""
    nodes = [
        helper.make_node("Add", ["x", "sum_in"], ["sum_out"]),
        helper.make_node("Mul", ["x", "one"], ["last_out"]),
        helper.make_node("Sub", ["sum_out", "last_in"], ["y"]),
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in names]
        for names in (("x", "sum_in", "last_in"), ("y", "sum_out", "last_out"))
    ]
    ones = [numpy_helper.from_array(np.ones((2, 3), np.float32), "one")]
    graph = helper.make_graph(nodes, "counter", *ports, ones)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kept(model: onnx.ModelProto, tag: str = "host", **options: Any) -> Library:
    """Return the library of a model whose states a session keeps."""
    return build(model, Target.from_tag(tag), replace(KEPT, **options))
