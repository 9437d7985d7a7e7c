"""Writes a graph anew: nodes, constants, and what is known of every value on the way.

Integers become QuantizeLinear and DequantizeLinear, around operators on floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.ir.contrib.inference import Dims, dims_of, results_of
from forge_pipeline.ir.external_data.mapped import array_of
from forge_pipeline.ir.values import unused

Array = np.ndarray[Any, Any]
Operand = tuple[str, str, str]
"""The names of an integer value, its scale and its zero point; the last may be empty."""

MICROSOFT = "com.microsoft"
STANDARD = ("", "ai.onnx")

READ = 64
"""Elements of the largest constant that a shape may follow from."""

SMALL = 1 << 16
"""Elements of the largest constant that is read: scales, zero points and biases are below it, weights stay where
they are."""


class Unusual(Exception):  # noqa: N818 - says why a node stays as it is; nobody but its writer sees it
    """Why a node is not written out."""


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name; an empty list is as good as none."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {name: value for name, value in values.items() if value != []}


def given(node: NodeProto, place: int) -> str:
    """Return the name of an input, empty where it is absent."""
    return str(node.input[place]) if place < len(node.input) else ""


def inputs_of(node: NodeProto, count: int) -> list[str]:
    """Return the names of ``count`` inputs, empty where they are absent."""
    return [given(node, place) for place in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How a value of the graph is to be read: the names of its scale and of its zero point."""

    scale: str
    zero: str


@dataclass(slots=True, kw_only=True)
class Writer:
    """A graph in the course of being written anew: what is known of its values, and the nodes and constants so far.

    ``source`` is the operator set of the nodes that are read, ``opset`` that of the nodes that are written. ``stored``
    has the integer values whose scale and zero point are known, ``first`` those with channels last that are also there
    with channels second, by their names (``qlast``). ``reshaped`` has the constants that a Reshape gives another shape,
    by its result's name: weights that two operators share. ``needs`` is the least operator set that knows what was
    written. A subgraph has a writer of its own, which adds its constants to those of the main graph.
    """

    source: int
    opset: int
    constants: dict[str, TensorProto]
    shapes: dict[str, Dims]
    types: dict[str, int]
    taken: set[str]
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    reshaped: dict[str, str] = field(default_factory=dict)
    needs: int = 1
    _made: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: GraphProto, source: int, least: int = 1, outer: Writer | None = None) -> Writer:
        """Return one for a graph, or for a subgraph of what ``outer`` writes; operators are written in those of set
        ``least`` at least. Types and shapes of inner values are known as far as they are written down, or follow."""
        constants = {tensor.name: tensor for tensor in graph.initializer}
        taken = {name for node in graph.node for name in (*node.input, *node.output)} | constants.keys()
        shapes, types = dict[str, Dims](), dict[str, int]()
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                constants[node.output[0]] = node.attribute[0].t
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type:
                types[value.name] = kind.elem_type
            dims = dims_of(kind)
            if dims is not None:
                shapes[value.name] = dims
        types |= {name: tensor.data_type for name, tensor in constants.items()}
        shapes |= {name: tuple(tensor.dims) for name, tensor in constants.items()}
        opset = max(source, least)
        if outer is None:
            return cls(source=source, opset=opset, constants=constants, shapes=shapes, types=types, taken=taken)
        outer.taken |= taken
        return cls(
            source=source,
            opset=opset,
            constants=outer.constants | constants,
            shapes=outer.shapes | shapes,
            types=outer.types | types,
            taken=outer.taken,
            tensors=outer.tensors,
            stored=dict(outer.stored),
            first=dict(outer.first),
            reshaped=dict(outer.reshaped),
            _made=outer._made,
        )

    def add(self, node: NodeProto) -> None:
        """Write a node of ONNX's own, as it is in the operator set that is written."""
        self._add(node, self.opset)

    def keep(self, node: NodeProto) -> None:
        """Write a node as it was read."""
        if node.domain in STANDARD:
            self._add(node, self.source)
        else:
            self.nodes.append(node)

    def _add(self, node: NodeProto, opset: int) -> None:
        self.nodes.append(node)
        if node.op_type == "Reshape" and node.input[0] in self.constants:
            self.reshaped[node.output[0]] = node.input[0]
        if all(not name or name in self.shapes for name in node.output):
            return
        data = {name: self.constants[name] for name in node.input if name in self.constants and self._is_read(name)}
        for name, (kind, dims) in results_of(node, opset, self.types, self.shapes, data).items():
            self.types.setdefault(name, kind)
            if dims is not None:
                self.shapes.setdefault(name, dims)

    def known_as(self, value: str, name: str) -> None:
        """Give a value another name."""
        if value in self.types:
            self.types.setdefault(name, self.types[value])
        if value in self.shapes:
            self.shapes.setdefault(name, self.shapes[value])

    def _is_read(self, name: str) -> bool:
        """Return whether a constant is small, and in the file itself."""
        tensor = self.constants[name]
        return bool(tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= READ)

    def array(self, name: str) -> Array | None:
        """Return a small constant, or None where ``name`` is none."""
        tensor = self.constants.get(name)
        return None if tensor is None or int(np.prod(tensor.dims or [1])) > SMALL else array_of(tensor)

    def weight(self, name: str) -> Array:
        """Return a constant of any size, which may be one in another shape; raise Unusual where ``name`` is none."""
        shape = self.shapes.get(name)
        if name in self.reshaped and shape is not None and all(isinstance(extent, int) for extent in shape):
            return array_of(self.constants[self.reshaped[name]]).reshape(shape)
        if name not in self.constants:
            raise Unusual("weights that are no constants")
        return array_of(self.constants[name])

    def named(self, base: str) -> str:
        """Return a name that no value has."""
        return unused(base, self.taken)

    def constant(self, array: Array, base: str) -> str:
        """Add a constant; equal ones are one."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = numpy_helper.from_array(array, self.named(base))
            self.tensors.append(self._made[key])
        tensor = self._made[key]
        self.constants[tensor.name] = tensor
        self.types[tensor.name], self.shapes[tensor.name] = tensor.data_type, tuple(tensor.dims)
        return str(tensor.name)

    def large(self, array: Array, base: str) -> str:
        """Add a constant that is not compared with others, such as weights."""
        name = self.named(base)
        tensor = numpy_helper.from_array(array, name)
        self.tensors.append(tensor)
        self.constants[name] = tensor
        self.types[name], self.shapes[name] = tensor.data_type, tuple(tensor.dims)
        return name

    def node(self, operator: str, inputs: list[str], base: str, name: str = "", **attributes: Any) -> str:
        """Add a node of one result; return the result's name."""
        result = self.named(base)
        self.add(helper.make_node(operator, inputs, [result], name=name or result, **attributes))
        return result

    def matmul(self, node: NodeProto, left: str, right: str, bias: str) -> None:
        """Add a product of floats, and its bias if it has a name, that give the first result of ``node``."""
        result = node.output[0]
        if not bias:
            self.add(helper.make_node("MatMul", [left, right], [result], name=node.name))
            return
        product = self.node("MatMul", [left, right], f"{result}/product", node.name)
        self.add(helper.make_node("Add", [product, bias], [result], name=f"{result}/biased"))

    def scale(self, name: str) -> str:
        """Return a scale as a float32, without axes if it is one number."""
        array = self.array(name)
        if array is not None:
            return self.constant(array.astype(np.float32).reshape(() if array.size == 1 else array.shape), name)
        if self.types.get(name, TensorProto.FLOAT) != TensorProto.FLOAT:
            name = self.node("Cast", [name], f"{name}/float", to=TensorProto.FLOAT)
        return self._as_number(name)

    def zero(self, name: str, like: str) -> str:
        """Return a zero point; where there is none, that of the type that the value ``like`` has."""
        if not name:
            kind = self.types.get(like, TensorProto.UNDEFINED)
            if like in self.stored:
                kind = self.types.get(self.stored[like].zero, TensorProto.UNDEFINED)
            if kind not in (TensorProto.UINT8, TensorProto.INT8):
                raise Unusual("no zero point, and a type that is not known")
            return self.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(kind)), f"{like}/zero")
        array = self.array(name)
        if array is not None:
            return self.constant(array.reshape(() if array.size == 1 else array.shape), name)
        return self._as_number(name)

    def _as_number(self, name: str) -> str:
        return self.node("Squeeze", [name], f"{name}/number") if self.shapes.get(name) == (1,) else name

    def affine(self, scale: str, zero: str, like: str) -> Stored:
        """Return how a result is stored whose scale and zero point have these names; ``like``: see ``zero``."""
        return Stored(scale=self.scale(scale), zero=self.zero(zero, like))

    def is_one(self, name: str) -> bool:
        """Return whether a scale or zero point is one number for its whole value."""
        shape = self.shapes.get(name)
        return shape is None or all(extent == 1 for extent in shape)

    def real(self, operand: Operand, axis: int | None = None) -> str:
        """Return an integer value as floats; ``axis`` is the one that a scale for each index belongs to."""
        value, scale, zero = operand
        axes: dict[str, Any] = {} if axis is None or self.is_one(scale) else {"axis": axis}
        inputs = [value, self.scale(scale), self.zero(zero, value)]
        number, factors = self.array(inputs[2]), self.array(inputs[1])
        if axes and number is not None and factors is not None and number.ndim == 0:  # one for each scale, or none
            inputs[2] = self.constant(np.full(factors.shape, number), f"{value}/zeros")
        return self.node("DequantizeLinear", inputs, f"{value}/real", **axes)

    def store(self, real: str, affine: Stored, result: str, axis: int | None = None) -> None:
        """Store floats as the integers that ``result`` names."""
        axes: dict[str, Any] = {} if axis is None or self.is_one(affine.scale) else {"axis": axis}
        inputs = [real, affine.scale, affine.zero]
        self.add(helper.make_node("QuantizeLinear", inputs, [result], name=f"{result}/stored", **axes))
        if not axes:
            self.stored[result] = affine

    def product(self, left: str, right: str, factor: float = 1.0) -> str:
        """Return the product of two scales, in float32."""
        arrays = [self.array(name) for name in (left, right)]
        if arrays[0] is not None and arrays[1] is not None:
            if 1 not in (arrays[0].size, arrays[1].size) and arrays[0].shape != arrays[1].shape:
                raise Unusual(f"scales {arrays[0].shape} and {arrays[1].shape} of one product")
            found = (np.float32(factor) * arrays[0].astype(np.float32)) * arrays[1].astype(np.float32)
            return self.constant(np.asarray(found, np.float32), f"{right}/product")
        if factor != 1.0:
            raise Unusual("a factor, and scales that are no constants")
        return self.node("Mul", [self.scale(left), self.scale(right)], f"{right}/product")

    def sums(self, value: str, left: str, right: str, axis: int, factor: float = 1.0) -> str:
        """Return int32 sums, in units of the product of two scales, as floats."""
        scale = self.scale(self.product(left, right, factor))
        array = self.array(scale)
        axes: dict[str, Any] = {} if array is not None and array.ndim == 0 else {"axis": axis}
        return self.node("DequantizeLinear", [value, scale], f"{value}/real", **axes)
