"""Operators of ONNX in place of one node: what the rules of com.microsoft's operators are written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.inference import Dims
from forge_pipeline.ir.contrib.writer import Array, Unusual, Writer, attributes_of, given

REDUCED_BY_INPUT = 18
"""The operator set from which on ReduceMean takes its axes as an input."""

Axes = Sequence[int]
Number = TypeVar("Number", int, float, bytes)


class Emitter:
    """Adds nodes that compute what ``node`` does."""

    def __init__(self, writer: Writer, node: NodeProto) -> None:
        self.writer, self.node = writer, node
        self.attributes = attributes_of(node)
        self.base = next((name for name in node.output if name), node.op_type)
        self._made = set[str]()

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = self.writer.node(operator, list(inputs), f"{self.base}/{operator}", **attributes)
        self._made.add(name)
        return name

    def input(self, place: int) -> str:
        """Return the name of an input, empty where it is absent."""
        return given(self.node, place)

    def output(self, place: int) -> str:
        """Return the name of a result, empty where nobody wants it."""
        return str(self.node.output[place]) if place < len(self.node.output) else ""

    def result(self, place: int, operator: str, *inputs: str, **attributes: Any) -> None:
        """Add the node that gives a result of the node that is replaced; none where nobody wants it."""
        if name := self.output(place):
            made = helper.make_node(operator, list(inputs), [name], name=self.node.name or name, **attributes)
            self.writer.add(made)

    def give(self, place: int, value: str) -> str:
        """Name a value as a result of the node that is replaced, and return its name from there on."""
        name, last = self.output(place), self.writer.nodes[-1:]
        if not name:
            return value
        if value in self._made and list(last[0].output) == [value]:  # read by nobody so far
            last[0].output[0] = name
            self.writer.known_as(value, name)
        else:
            self.result(place, "Identity", value)
        return name

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        return self._one_of(name, default, int)

    def real(self, name: str, default: float = 0.0) -> float:
        """Return an attribute that is a number."""
        return self._one_of(name, default, float)

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a word."""
        return self._one_of(name, default.encode(), bytes).decode(errors="replace")

    def listed(self, name: str, kind: type[Number]) -> list[Number]:
        """Return an attribute that is a list of numbers, an empty one where it is absent."""
        values = self.attributes.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise Unusual(f"an attribute {name} of another type")
        return values

    def _one_of(self, name: str, default: Number, kind: type[Number]) -> Number:
        value = self.attributes.get(name, default)
        if not isinstance(value, kind):
            raise Unusual(f"an attribute {name} of another type")
        return value

    def refuse(self, places: dict[int, str]) -> None:
        """Raise Unusual where an input is given that has no rule: its place, and what it is."""
        for place, what in places.items():
            if self.input(place):
                raise Unusual(what)

    def kind(self, value: str, default: int = TensorProto.FLOAT) -> int:
        """Return the element type of a value."""
        return self.writer.types.get(value) or default

    def shape(self, value: str) -> Dims | None:
        """Return what is known of a value's shape."""
        return self.writer.shapes.get(value)

    def rank(self, value: str, what: str) -> int:
        """Return the number of axes; raise Unusual, which names the value as ``what``, where it is not known."""
        shape = self.shape(value)
        if shape is None:
            raise Unusual(f"{what} with an unknown number of axes")
        return len(shape)

    def extent(self, value: str, axis: int) -> int | str | None:
        """Return a size, its name, or None where neither is known."""
        shape = self.shape(value)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def size(self, value: str, axis: int) -> int | None:
        """Return a size where it is a number."""
        extent = self.extent(value, axis)
        return extent if isinstance(extent, int) else None

    def constant(self, array: Array) -> str:
        """Return the name of a constant."""
        return self.writer.constant(array, f"{self.base}/constant")

    def number(self, value: float, like: str) -> str:
        """Return a number of the type that the value ``like`` has."""
        dtype = helper.tensor_dtype_to_np_dtype(self.kind(like))
        return self.constant(np.array(value, np.float64).astype(dtype))

    def integers(self, *values: int) -> str:
        """Return a vector of int64."""
        return self.constant(np.array(values, np.int64))

    def index(self, value: int) -> str:
        """Return an int64 without axes."""
        return self.constant(np.array(value, np.int64))

    def array(self, value: str, what: str) -> Array:
        """Return a small constant; raise Unusual, which names it as ``what``, where it is none."""
        array = self.writer.array(value)
        if array is None:
            raise Unusual(f"{what} that is no constant")
        return array

    def whole(self, value: str, what: str) -> int:
        """Return a constant that is one whole number; raise Unusual, which names it as ``what``, where it is none."""
        array = self.array(value, what)
        if array.size != 1 or array.dtype.kind not in "iu":
            raise Unusual(f"{what} of shape {array.shape}")
        return int(array.reshape(()))

    def cast(self, value: str, kind: int) -> str:
        """Return a value in another type."""
        return value if self.writer.types.get(value) == kind else self("Cast", value, to=kind)

    def reshape(self, value: str, *dims: int) -> str:
        """Return a value in another shape: 0 is the size at that place, -1 what is left."""
        return self("Reshape", value, self.integers(*dims))

    def transpose(self, value: str, *perm: int) -> str:
        """Return a value with its axes in another order."""
        return self("Transpose", value, perm=list(perm))

    def squeeze(self, value: str, *axes: int) -> str:
        """Return a value without axes of one element."""
        return self("Squeeze", value, self.integers(*axes))

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Return a value with axes of one element."""
        return self("Unsqueeze", value, self.integers(*axes))

    def slice(self, value: str, start: str, end: str, axis: int) -> str:
        """Return a part of an axis, between two vectors of one int64."""
        return self("Slice", value, start, end, self.integers(axis))

    def part(self, value: str, start: int, end: int, axis: int = -1) -> str:
        """Return a part of an axis, between two numbers."""
        return self.slice(value, self.integers(start), self.integers(end), axis)

    def split(self, value: str, sizes: Axes, axis: int = -1) -> list[str]:
        """Return the parts of an axis that have these sizes."""
        names = [self.writer.named(f"{self.base}/part") for _ in sizes]
        parts = [value, self.integers(*sizes)]
        self.writer.add(helper.make_node("Split", parts, names, name=names[0], axis=axis))
        return names

    def concat(self, *values: str, axis: int) -> str:
        """Return values one behind the other."""
        return self("Concat", *values, axis=axis)

    def reduce(self, operator: str, value: str, axes: Axes, *, keepdims: bool = True) -> str:
        """Return a ReduceMean or its like; of ReduceSum the axes were an input before."""
        if operator == "ReduceSum" or self.writer.opset >= REDUCED_BY_INPUT:
            return self(operator, value, self.integers(*axes), keepdims=int(keepdims))
        return self(operator, value, axes=list(axes), keepdims=int(keepdims))

    def length(self, value: str, axis: int) -> str:
        """Return the size of an axis, which is not negative, as a vector of one int64."""
        size = self.size(value, axis)
        if size is not None:
            return self.integers(size)
        return self("Gather", self("Shape", value), self.integers(axis), axis=0)

    def positions(self, start: str, length: str) -> str:
        """Return the whole numbers from ``start`` on, as many as ``length`` says: both vectors of one int64."""
        end = self("Add", start, length)
        return self("Range", self.squeeze(start, 0), self.squeeze(end, 0), self.index(1))

    def softmax(self, scores: str) -> str:
        """Return the softmax over the last axis."""
        return self("Softmax", scores, axis=-1)

    def silu(self, value: str) -> str:
        """Return x sigmoid(x)."""
        return self("Mul", value, self("Sigmoid", value))

    def gelu(self, value: str) -> str:
        """Return x Phi(x), Phi being the normal distribution. Source: Hendrycks and Gimpel, arXiv 1606.08415."""
        scaled = self("Div", value, self.number(2**0.5, value))
        gate = self("Add", self("Erf", scaled), self.number(1.0, value))
        return self("Mul", self("Mul", value, gate), self.number(0.5, value))

    def tanh_gelu(self, value: str) -> str:
        """Return Gelu by a hyperbolic tangent: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
        cube = self("Mul", self("Mul", value, value), value)
        inner = self("Add", value, self("Mul", cube, self.number(0.044715, value)))
        scaled = self("Mul", inner, self.number((2 / np.pi) ** 0.5, value))
        gate = self("Add", self("Tanh", scaled), self.number(1.0, value))
        return self("Mul", self("Mul", value, gate), self.number(0.5, value))
