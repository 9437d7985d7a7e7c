"""The ONNX graph in the making, that the families of operators write to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax

from forge_pipeline.errors import ModelError
from forge_pipeline.relax.bindings import Expr, is_variable, plain

Value = Any
"""What an argument becomes: a value's name, a list of them for a tuple, a list of dimensions for a shape, a number."""


class Unsupported(Exception):  # noqa: N818 - caught within this package, and reported as a ModelError
    """A use of an operator that has no form in ONNX; the message says why."""


class Exporter:
    """An ONNX graph in the making, and what each Relax value is called in it."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.module = module
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: dict[Expr, Value] = {}
        self.symbols: dict[str, tuple[str, int]] = {}  # symbolic dimension -> an input and the axis that has it
        self._taken: set[str] = set()
        self._constants: dict[Expr, str] = {}

    def fresh(self, wanted: str) -> str:
        """Return a name that no value has yet: ``wanted``, or with a number behind it."""
        name = wanted
        for number in count(1):
            if name not in self._taken:
                break
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def constant(self, array: Any, dtype: str | None = None, name: str = "constant") -> str:
        """Add an initializer and return its name; ``dtype`` as numpy and ml_dtypes name it."""
        kind = None if dtype is None else getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        chosen = self.fresh(name)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, kind), chosen))
        return chosen

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.many(op_type, *inputs, outputs=1, **attributes)[0]

    def many(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        names = [self.fresh(op_type.lower()) for _ in range(outputs)]
        kept = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **kept))
        return names

    def shape(self, dims: Sequence[Any]) -> str:
        """Return a vector of int64 that holds ``dims``, which may be symbolic."""
        if all(isinstance(dim, int) for dim in dims):
            return self.constant(list(dims), "int64", "shape")
        return self.node("Concat", *(self.dimension(dim) for dim in dims), axis=0)

    def dimension(self, dim: Any) -> str:
        """Return a vector with one int64: a number, a symbolic dimension, or arithmetic on them."""
        if isinstance(dim, int):
            return self.constant([dim], "int64", "dimension")
        known = plain(dim)
        if isinstance(known, int):
            return self.dimension(known)
        if isinstance(dim, relax.Var):
            if str(dim.name) not in self.symbols:
                raise Unsupported(f"dimension {dim.name}, which no input has")
            name, axis = self.symbols[str(dim.name)]
            return self.node("Shape", name, start=axis, end=axis + 1)
        steps = {
            "Add": "Add",
            "Sub": "Sub",
            "Mul": "Mul",
            "FloorDiv": "Div",
            "Max": "Max",
            "Min": "Min",
            "FloorMod": "Mod",
        }
        kind = type(dim).__name__
        if kind not in steps:
            raise Unsupported(f"the dimension {dim}")
        return self.node(steps[kind], self.dimension(dim.a), self.dimension(dim.b))

    def value(self, expr: Expr) -> Value:
        """Return what an argument is in ONNX."""
        if isinstance(expr, ir.GenericConst):
            if expr not in self._constants:
                self._constants[expr] = self.constant(expr.value.numpy(), str(expr.value.dtype))
            return self._constants[expr]
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.values[expr.tuple_value][expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return [known if isinstance(known := plain(item), int) else item for item in expr.values]
        return self.values[expr] if is_variable(expr) else plain(expr)


def onnx_type(dtype: str) -> int:
    """Return ONNX's number of an element type. Raises ModelError for one that it lacks."""
    known = getattr(ml_dtypes, dtype, None)
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(known or dtype)))
    except (TypeError, KeyError, ValueError) as error:
        raise ModelError("element type", "a type that ONNX has", dtype, "convert to another type first") from error


def element_type(dtype: str) -> int:
    """Return ONNX's number of an element type, ``TensorProto.BOOL`` for TVM's word for it."""
    return TensorProto.BOOL if dtype in ("bool", "uint1") else onnx_type(dtype)
