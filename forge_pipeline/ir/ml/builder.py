"""Writes a graph anew, node by node, and knows the type of every value on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from forge_pipeline.ir.contrib.writer import MICROSOFT
from forge_pipeline.ir.external_data.mapped import array_of
from forge_pipeline.ir.ml import foreign
from forge_pipeline.ir.values import unused

Array = np.ndarray[Any, Any]
Labels = tuple[str, ...] | tuple[int, ...]
Extent = int | None

ML = "ai.onnx.ml"
FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING


SMALL = 1 << 10
"""Elements of the largest constant that types may depend on."""


REFUSALS = (onnx.shape_inference.InferenceError, onnx.defs.SchemaError, onnx.checker.ValidationError)
"""What ONNX raises for a damaged node, beside RuntimeError, and KeyError for a value of no known type."""


class Unusual(Exception):  # noqa: N818 - says why a node stays as it is; nobody but who writes the graph sees it
    """Why a node is not written out."""


@dataclass(slots=True, kw_only=True)
class Builder:
    """A graph in the course of being written anew.

    ``texts`` are the values that were strings and are numbers now: what the number 0, 1, .. stands for. ``classes``
    says of scores what each column is a score of.
    """

    opsets: dict[str, int]
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorProto] = field(default_factory=dict)
    types: dict[str, TypeProto] = field(default_factory=dict)
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    classes: dict[str, Labels] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: ModelProto) -> Builder:
        """Return one that has the inputs and constants of ``model``, and no node yet."""
        graph = model.graph
        made = cls(opsets={item.domain or "": item.version for item in model.opset_import})
        made.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        made.taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
        for value in graph.input:
            made.types[value.name] = value.type
        for tensor in graph.initializer:
            made.hold(tensor)
        return made

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.opsets[""]

    def hold(self, tensor: TensorProto) -> None:
        """Add a constant; of strings, the number of each among the different ones."""
        if tensor.data_type == STRING:
            listed = [item.decode() for item in tensor.string_data]
            self.texts[tensor.name] = tuple(dict.fromkeys(listed))
            numbers = [self.texts[tensor.name].index(item) for item in listed]
            array = np.array(numbers, np.int64).reshape(tuple(tensor.dims))
            tensor = numpy_helper.from_array(array, tensor.name)
        self.tensors[tensor.name] = tensor
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def named(self, base: str) -> str:
        """Return a name that no value has."""
        return unused(base, self.taken)

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Add a constant; return its name."""
        tensor = numpy_helper.from_array(np.asarray(array, dtype), self.named("constant"))
        self.hold(tensor)
        return str(tensor.name)

    def array(self, name: str) -> Array | None:
        """Return a constant, None where ``name`` is none."""
        return array_of(self.tensors[name]) if name in self.tensors else None

    def add(self, node: NodeProto) -> None:
        """Add a node as it is, and infer the types of its results."""
        self.nodes.append(node)
        self.taken.update(node.output)
        if node.op_type == "Constant" and any(item.name == "value" for item in node.attribute):
            tensor = TensorProto()
            tensor.CopyFrom(next(item.t for item in node.attribute if item.name == "value"))
            tensor.name = node.output[0]
            self.hold(tensor)
            self.nodes.pop()
            return
        self.types |= self._inferred(node)

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        names = [name for name in node.input if name in self.types]
        types = {name: self.types[name] for name in names}
        small = {name: self.tensors[name] for name in names if name in self.tensors and self._is_small(name)}
        if node.domain == MICROSOFT:
            return foreign.results_of(node, self.opset, types, small)
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
            found: dict[str, TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                small,
                opset_imports=[helper.make_opsetid(domain, version) for domain, version in self.opsets.items()],
                ir_version=10,
            )
        except (RuntimeError, KeyError, *REFUSALS):
            return {}  # what is damaged is refused when the model is checked
        return found

    def _is_small(self, name: str) -> bool:
        """Return whether a constant is worth reading for a type: a shape, axes."""
        tensor = self.tensors[name]
        return bool(tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= SMALL)

    def node(
        self, operator: str, *inputs: str | Array | float, result: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Add a node of one result; arrays and numbers become constants, numbers of the first input's type."""
        kind = next((self.dtype(item) for item in inputs if isinstance(item, str)), np.dtype(np.float32))
        names = [item if isinstance(item, str) else self._constant(item, kind) for item in inputs]
        result = result or self.named(operator.lower())
        self.add(helper.make_node(operator, names, [result], name=result, domain=domain, **attributes))
        return result

    def _constant(self, item: Array | float, kind: np.dtype[Any]) -> str:
        return self.constant(item) if isinstance(item, np.ndarray) else self.constant(item, kind)

    def elem_type(self, name: str) -> int:
        """Return a value's element type. Unusual where it is not known."""
        found = self.types.get(name)
        if found is None or not found.tensor_type.elem_type:
            raise Unusual(f"{name!r}, whose type is not known")
        return int(found.tensor_type.elem_type)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return a value's element type as NumPy's. Unusual where it is not known, or text."""
        kind = self.elem_type(name)
        if kind == STRING:
            raise Unusual(f"{name!r} holds text")
        found: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        return found

    def shape(self, name: str) -> list[Extent]:
        """Return a value's shape, None for an extent that is open. Unusual where the rank is not known."""
        found = self.types.get(name)
        if found is None or not found.tensor_type.HasField("shape"):
            raise Unusual("an input of no known shape")
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in found.tensor_type.shape.dim]

    def cast(self, name: str, kind: int) -> str:
        """Return a value as another type."""
        return name if self.elem_type(name) == kind else self.node("Cast", name, to=kind)

    def rows(self, name: str) -> str:
        """Return a matrix: a vector is its only row, as ai.onnx.ml takes it. Unusual for more axes."""
        rank = len(self.shape(name))
        if rank == 1:
            return self.node("Reshape", name, np.array([1, -1], np.int64))
        if rank != 2:
            raise Unusual(f"an input of {rank} axes")
        return name

    def floats(self, name: str) -> str:
        """Return a matrix of floats."""
        return self.cast(self.rows(name), FLOAT)

    def reduced(self, operator: str, name: str) -> str:
        """Reduce the last axis, which stays with an extent of 1."""
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            return self.node(operator, name, np.array([-1], np.int64), keepdims=1)
        return self.node(operator, name, axes=[-1], keepdims=1)

    def unsqueezed(self, name: str) -> str:
        """Add a last axis of extent 1."""
        if self.opset >= 13:
            return self.node("Unsqueeze", name, np.array([-1], np.int64))
        return self.node("Unsqueeze", name, axes=[len(self.shape(name))])

    def affine(self, name: str, weights: Array, offset: Array) -> str:
        """Return ``name`` (rows, inputs) times ``weights`` (inputs, outputs), plus ``offset`` (outputs,)."""
        product = self.node("MatMul", name, weights)
        return self.node("Add", product, offset) if offset.any() else product

    def give(self, source: str, result: str) -> None:
        """Let a value of the model be ``source``."""
        self.node("Identity", source, result=result)
        for known in (self.texts, self.classes):
            if source in known:
                known[result] = known[source]  # type: ignore[assignment]  # each maps to what it holds
