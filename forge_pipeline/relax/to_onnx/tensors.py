"""ONNX forms of Relax's operators on tensors: arithmetic, comparison, shape, creation.

A row is a function ``(exporter, call, attributes, *arguments) -> name or names``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from forge_pipeline.relax.bindings import plain
from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported, element_type

Row = Callable[..., Any]


def dtype_of(expr: Any) -> str:
    """Return the element type of an expression."""
    return str(expr.ty.dtype)


def rank_of(expr: Any) -> int:
    """Return the number of dimensions of an expression."""
    return int(expr.ty.ndim)


def static_shape(expr: Any, why: str) -> list[int]:
    """Return a shape that is known in full. Raises Unsupported, saying ``why`` it must be."""
    shape = [plain(extent) for extent in expr.ty.shape.values]
    if not all(isinstance(extent, int) for extent in shape):
        raise Unsupported(f"a symbolic shape, {why}")
    return [int(extent) for extent in shape]


def _same(name: str, maker: Exporter, call: Any, known: dict[str, Any], *inputs: str) -> str:
    return maker.node(name, *inputs)


def _floats_only(name: str, maker: Exporter, call: Any, known: dict[str, Any], *inputs: str) -> str:
    if not dtype_of(call.args[0]).startswith(("float", "bfloat")):
        raise Unsupported(f"operands of type {dtype_of(call.args[0])}")
    return maker.node(name, *inputs)


def _not_equal(maker: Exporter, call: Any, known: dict[str, Any], a: str, b: str) -> str:
    return maker.node("Not", maker.node("Equal", a, b))


def _finite(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Not", maker.node("Or", maker.node("IsNaN", x), maker.node("IsInf", x)))


def _square(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Mul", x, x)


def _rsqrt(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Reciprocal", maker.node("Sqrt", x))


def _trunc(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Mul", maker.node("Sign", x), maker.node("Floor", maker.node("Abs", x)))


def _floor_divide(maker: Exporter, call: Any, known: dict[str, Any], a: str, b: str) -> str:
    if not dtype_of(call).startswith("float"):
        raise Unsupported("integers: ONNX rounds their quotient towards zero")
    return maker.node("Floor", maker.node("Div", a, b))


def _floor_mod(maker: Exporter, call: Any, known: dict[str, Any], a: str, b: str) -> str:
    if dtype_of(call).startswith("float"):
        return maker.node("Sub", a, maker.node("Mul", b, maker.node("Floor", maker.node("Div", a, b))))
    return maker.node("Mod", a, b)


def _clip(maker: Exporter, call: Any, known: dict[str, Any], x: str, low: Any, high: Any) -> str:
    bounds = [maker.constant(bound, dtype_of(call)) for bound in (low, high)]
    return maker.node("Clip", x, *bounds)


def _astype(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Cast", x, to=element_type(dtype_of(call)))


def _reshape(maker: Exporter, call: Any, known: dict[str, Any], x: str, dims: Any) -> str:
    if isinstance(dims, str):
        return maker.node("Reshape", x, dims, allowzero=1)
    symbolic = [index for index, dim in enumerate(dims) if not isinstance(dim, int)]
    if len(symbolic) == 1 and 0 not in dims:
        dims = [-1 if index == symbolic[0] else dim for index, dim in enumerate(dims)]
    return maker.node("Reshape", x, maker.shape(dims), allowzero=1 if 0 in dims else None)


def flattened(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    """Return ``x`` in one dimension."""
    return maker.node("Reshape", x, maker.constant([-1], "int64"))


def _batch_flatten(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Flatten", x, axis=1)


def _permute(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axes = known.get("axes")
    rank = rank_of(call.args[0])
    return maker.node("Transpose", x, perm=list(reversed(range(rank))) if axes is None else [a % rank for a in axes])


def _expand_dims(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Unsqueeze", x, maker.constant(known["axis"], "int64", "axes"))


def _squeeze(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axes = known.get("axis")
    return maker.node("Squeeze", x) if axes is None else maker.node("Squeeze", x, maker.constant(axes, "int64", "axes"))


def _concat(maker: Exporter, call: Any, known: dict[str, Any], values: list[str]) -> str:
    axis = known.get("axis")
    if axis is None:
        values, axis = [flattened(maker, call, known, value) for value in values], 0
    return maker.node("Concat", *values, axis=axis)


def _stack(maker: Exporter, call: Any, known: dict[str, Any], values: list[str]) -> str:
    axis = known.get("axis") or 0
    axes = maker.constant([axis], "int64", "axes")
    return maker.node("Concat", *(maker.node("Unsqueeze", value, axes) for value in values), axis=axis)


def _split(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> list[str]:
    axis = known["axis"]
    parts = [static_shape_of_field(field, axis) for field in call.ty.fields]
    if any(part is None for part in parts):
        raise Unsupported("parts of symbolic extent")
    return maker.many("Split", x, maker.constant(parts, "int64", "parts"), outputs=len(parts), axis=axis)


def static_shape_of_field(kind: Any, axis: int) -> int | None:
    """Return a tensor type's extent along ``axis``, or None where it is symbolic."""
    extent = plain(kind.shape.values[axis])
    return extent if isinstance(extent, int) else None


def _broadcast(maker: Exporter, call: Any, known: dict[str, Any], x: str, dims: Any) -> str:
    return maker.node("Expand", x, dims if isinstance(dims, str) else maker.shape(dims))


def _tile(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    repeats = list(known["repeats"])
    rank = rank_of(call.args[0])
    if len(repeats) > rank:
        lead = maker.constant(list(range(len(repeats) - rank)), "int64", "axes")
        x = maker.node("Unsqueeze", x, lead)
    return maker.node("Tile", x, maker.constant([1] * (rank - len(repeats)) + repeats, "int64", "repeats"))


def _repeat(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    times, axis = int(known["repeats"]), known.get("axis")
    shape = static_shape(call.args[0], "whose elements are repeated")
    if axis is None:
        x, shape, axis = flattened(maker, call, known, x), [int(np.prod(shape))], 0
    axis %= len(shape)
    wide = maker.node("Unsqueeze", x, maker.constant([axis + 1], "int64", "axes"))
    spread = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    expanded = maker.node("Expand", wide, maker.constant(spread, "int64", "shape"))
    flat = [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]]
    return maker.node("Reshape", expanded, maker.constant(flat, "int64", "shape"))


def _full(maker: Exporter, call: Any, known: dict[str, Any], dims: Any, value: Any) -> str:
    filled = value if isinstance(value, str) else maker.constant(value, dtype_of(call))
    cast = maker.node("Cast", filled, to=element_type(dtype_of(call)))
    return maker.node("Expand", cast, dims if isinstance(dims, str) else maker.shape(dims))


def _filled(number: int, maker: Exporter, call: Any, known: dict[str, Any], dims: Any) -> str:
    return maker.node("Expand", maker.constant(number, dtype_of(call)), maker.shape(dims))


def _filled_like(number: int, maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Expand", maker.constant(number, dtype_of(call)), maker.node("Shape", x))


def _full_like(maker: Exporter, call: Any, known: dict[str, Any], x: str, value: str) -> str:
    cast = maker.node("Cast", value, to=element_type(dtype_of(call)))
    return maker.node("Expand", cast, maker.node("Shape", x))


def _arange(maker: Exporter, call: Any, known: dict[str, Any], start: Any, end: Any, step: Any) -> str:
    if all(isinstance(item, int | float) for item in (start, end, step)):
        return maker.constant(np.arange(start, end, step), dtype_of(call))
    flat = maker.constant(np.array(0), "int64")
    parts = [maker.node("Squeeze", maker.dimension(item)) for item in (start, end, step)]
    made = maker.node("Range", *(maker.node("Add", part, flat) for part in parts))
    return maker.node("Cast", made, to=element_type(dtype_of(call)))


def _triangle(upper: int, maker: Exporter, call: Any, known: dict[str, Any], x: str, k: Any = 0) -> str:
    return maker.node("Trilu", x, maker.constant(k, "int64"), upper=upper)


def _shape_of(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> Any:
    return [item if not isinstance(plain(item), int) else plain(item) for item in call.args[0].ty.shape.values]


def _shape_to_tensor(maker: Exporter, call: Any, known: dict[str, Any], dims: Sequence[Any]) -> str:
    return maker.shape(dims)


def _masked_fill(maker: Exporter, call: Any, known: dict[str, Any], x: str, mask: str, value: str) -> str:
    return maker.node("Where", mask, value, x)


UNARY = {
    **{"abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan"},
    **{"atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor"},
    **{"log": "Log", "negative": "Neg", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh"},
    **{"sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh", "round": "Round", "isnan": "IsNaN", "isinf": "IsInf"},
    **{"logical_not": "Not", "bitwise_not": "BitwiseNot"},
}
BINARY = {
    **{"add": "Add", "subtract": "Sub", "multiply": "Mul", "power": "Pow", "maximum": "Max", "minimum": "Min"},
    **{"equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less"},
    **{"less_equal": "LessOrEqual", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"},
    **{"bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "where": "Where"},
}

TENSORS: Mapping[str, Row] = MappingProxyType(
    {
        **{name: partial(_same, onnx_name) for name, onnx_name in {**UNARY, **BINARY}.items()},
        "divide": partial(_floats_only, "Div"),
        "not_equal": _not_equal,
        "isfinite": _finite,
        "square": _square,
        "rsqrt": _rsqrt,
        "trunc": _trunc,
        "floor_divide": _floor_divide,
        "floor_mod": _floor_mod,
        "clip": _clip,
        "astype": _astype,
        "reshape": _reshape,
        "flatten": flattened,
        "nn.batch_flatten": _batch_flatten,
        "permute_dims": _permute,
        "expand_dims": _expand_dims,
        "squeeze": _squeeze,
        "concat": _concat,
        "stack": _stack,
        "split": _split,
        "broadcast_to": _broadcast,
        "tile": _tile,
        "repeat": _repeat,
        "full": _full,
        "full_like": _full_like,
        "zeros": partial(_filled, 0),
        "ones": partial(_filled, 1),
        "zeros_like": partial(_filled_like, 0),
        "ones_like": partial(_filled_like, 1),
        "arange": _arange,
        "tril": partial(_triangle, 0),
        "triu": partial(_triangle, 1),
        "shape_of": _shape_of,
        "shape_to_tensor": _shape_to_tensor,
        "masked_fill": _masked_fill,
    }
)
