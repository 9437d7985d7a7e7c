"""An encoder as PyTorch exported BERT before it had attention as one operator: what optimizers look for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE, WIDTH, WORDS, PLACES = 4, 8, 32, 40, 16


class Encoder:
    """A graph under construction; weights are random."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random: Any = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def tensor(self, array: Any) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def random_tensor(self, *shape: int) -> str:
        return self.tensor((self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def unsqueezed(self, x: str, axis: int) -> str:
        if self.opset < 13:
            return self.node("Unsqueeze", x, axes=[axis])
        return self.node("Unsqueeze", x, self.tensor(np.array([axis])))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.random_tensor(rows, columns)), self.random_tensor(columns))

    def normalized(self, x: str) -> str:
        return self.node("LayerNormalization", x, *(self.random_tensor(WIDTH) for _ in "gb"), axis=-1, epsilon=1e-6)

    def heads(self, x: str, perm: list[int]) -> str:
        split = self.node("Reshape", self.linear(x, WIDTH, WIDTH), self.tensor(np.array([0, 0, HEADS, SIZE])))
        return self.node("Transpose", split, perm=perm)

    def attention(self, x: str, mask: str) -> str:
        query, key, value = self.heads(x, [0, 2, 1, 3]), self.heads(x, [0, 2, 3, 1]), self.heads(x, [0, 2, 1, 3])
        scores = self.node("Div", self.node("MatMul", query, key), self.tensor(np.float32(SIZE**0.5)))
        mixed = self.node("MatMul", self.node("Softmax", self.node("Add", scores, mask), axis=-1), value)
        joined = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.node("Reshape", joined, self.tensor(np.array([0, 0, WIDTH])))
        return self.linear(flat, WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        scaled = self.node("Div", x, self.tensor(np.float32(2**0.5)))
        gate = self.node("Add", self.node("Erf", scaled), self.tensor(np.float32(1)))
        return self.node("Mul", self.node("Mul", x, gate), self.tensor(np.float32(0.5)))

    def embedding(self) -> str:
        words = self.node("Gather", self.random_tensor(WORDS, WIDTH), "input_ids", axis=0)
        kinds = self.node("Gather", self.random_tensor(2, WIDTH), "token_type_ids", axis=0)
        shape = self.node("Shape", "input_ids")
        tokens = self.unsqueezed(self.node("Gather", shape, self.tensor(np.int64(1)), axis=0), 0)
        places = self.tensor(np.arange(PLACES)[None])
        bounds = (self.tensor(np.array([0])), tokens, self.tensor(np.array([1])), self.tensor(np.array([1])))
        rows = self.node("Gather", self.random_tensor(PLACES, WIDTH), self.node("Slice", places, *bounds), axis=0)
        return self.normalized(self.node("Add", self.node("Add", words, kinds), rows))


def encoder(layers: int = 2, opset: int = 17) -> onnx.ModelProto:
    """Return an encoder with open batch and sequence.

    Before set 17 its LayerNormalization is none of ONNX's, but what ONNX Runtime itself writes.
    """
    net = Encoder(opset)
    mask = "attention_mask"
    for axis in (1, 2):
        mask = net.unsqueezed(mask, axis)
    hidden = net.node("Sub", net.tensor(np.float32(1)), net.node("Cast", mask, to=TensorProto.FLOAT))
    mask = net.node("Mul", hidden, net.tensor(np.float32(-10000)))
    x = net.embedding()
    for _ in range(layers):
        x = net.normalized(net.node("Add", net.attention(x, mask), x))
        inner = net.gelu(net.linear(x, WIDTH, 2 * WIDTH))
        x = net.normalized(net.node("Add", net.linear(inner, 2 * WIDTH, WIDTH), x))
    names = ("input_ids", "token_type_ids", "attention_mask")
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    out = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    graph = helper.make_graph(net.nodes, "encoder", values, [out], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tokens(batch: int, count: int) -> dict[str, Any]:
    """Return inputs of the encoder, rows of several lengths."""
    random: Any = np.random.default_rng(batch)
    lengths = random.integers(1, count + 1, (batch, 1))
    return {
        "input_ids": random.integers(0, WORDS, (batch, count)),
        "token_type_ids": random.integers(0, 2, (batch, count)),
        "attention_mask": (np.arange(count)[None] < lengths).astype(np.int64),
    }
