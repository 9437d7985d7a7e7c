"""The extents of a model's inputs: named, fixed, open, or expressions over other names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from onnx import TypeProto, ValueInfoProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.polynomial import Memo
from forge_pipeline.ir.sizes.value import UNKNOWN, Known
from forge_pipeline.ir.values import unused

_LONGEST: Final = 256
"""Characters of a dimension's name that is read as an expression."""


Limits = Mapping[str, "tuple[int, int | None]"]


def inputs_of(values: Iterable[ValueInfoProto], limits: Limits, memo: Memo) -> dict[str, Known]:
    """Return what a graph's inputs are, by name.

    A dimension's name is an extent. A dimension without name, or whose number is not positive, is an extent of its
    own, called ``<input>_<axis>``. A name such as ``2*seq`` or ``past + seq`` is an expression, if all that it names
    are extents by themselves elsewhere. ``limits`` has the least and the greatest that an extent can be.
    """
    values = list(values)
    written = {text for value in values for text in _texts(value.type)}
    plain = {text for text in written if text.isidentifier()}
    taken = set(written)
    extents = _Extents(limits, plain, taken, memo)
    return {value.name: _known(value.type, value.name, extents) for value in values}


class _Extents:
    """Extents by their names."""

    def __init__(self, limits: Limits, plain: set[str], taken: set[str], memo: Memo) -> None:
        self.limits, self.plain, self.taken, self.memo = limits, plain, taken, memo

    def named(self, name: str) -> Whole:
        low, high = self.limits.get(name, (0, None))
        return e.extent(name, high, low, self.memo)


def parsed(text: str, extents: Mapping[str, Whole]) -> Whole | None:
    """Return an expression over ``extents`` as exporters write it, None where it is none."""
    if len(text) > _LONGEST:
        return None
    try:
        return _read(ast.parse(text, mode="eval").body, extents)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Overgrown):
        return None


def _texts(kind: TypeProto) -> list[str]:
    kind = _tensor(kind)
    return [dim.dim_param for dim in kind.tensor_type.shape.dim if dim.dim_param]


def _tensor(kind: TypeProto) -> TypeProto:
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind.optional_type.elem_type
    return kind


def _known(kind: TypeProto, name: str, extents: _Extents) -> Known:
    if kind.HasField("optional_type"):
        return _known(kind.optional_type.elem_type, name, extents)
    if kind.HasField("sequence_type"):
        element = _tensor(kind)
        return Known(0, None, element=Known(element.tensor_type.elem_type, None))
    if not kind.HasField("tensor_type"):
        return UNKNOWN
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return Known(tensor.elem_type, None)
    shape: list[Whole] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            shape.append(int(dim.dim_value))
        elif dim.dim_param:
            plain = {} if dim.dim_param in extents.plain else {text: extents.named(text) for text in extents.plain}
            found = parsed(dim.dim_param, plain)
            shape.append(extents.named(dim.dim_param) if found is None else found)
        else:
            shape.append(extents.named(unused(f"{name}_{axis}", extents.taken, first=2)))
    return Known(tensor.elem_type, tuple(shape))


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Whole, Whole], Whole]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: e.floordiv,
    ast.Mod: e.mod,
}
_CALLS: Final[Mapping[str, Callable[..., Whole]]] = {"max": e.maximum, "min": e.minimum, "mod": e.mod}


def _read(node: ast.expr, extents: Mapping[str, Whole]) -> Whole:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in extents:
        return extents[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand, extents)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_read(node.left, extents), _read(node.right, extents))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        power = node.right.value
        if type(power) is int and 0 <= power <= e.MAX_DEGREE:
            return e.product([_read(node.left, extents)] * power)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and not node.keywords:
        name = node.func.id.lower()
        if name in ("floor", "ceil", "ceiling") and len(node.args) == 1:
            return _rounded(node.args[0], extents, up=name != "floor")
        if name in _CALLS:
            return _CALLS[name](*(_read(arg, extents) for arg in node.args))
    raise ValueError


def _rounded(node: ast.expr, extents: Mapping[str, Whole], *, up: bool) -> Whole:
    """Return a quotient rounded down or up: ``floor(h/2)``, ``floor(h/2 - 1/2)``."""
    numerator, denominator = _fraction(node, extents)
    return e.ceildiv(numerator, denominator) if up else e.floordiv(numerator, denominator)


def _fraction(node: ast.expr, extents: Mapping[str, Whole]) -> tuple[Whole, int]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        (a, p), (b, q) = _fraction(node.left, extents), _fraction(node.right, extents)
        return (a * q + b * p if isinstance(node.op, ast.Add) else a * q - b * p), p * q
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        (a, p), below = _fraction(node.left, extents), _read(node.right, extents)
        if not isinstance(below, int) or below <= 0:
            raise ValueError
        return a, p * below
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        (a, p), (b, q) = _fraction(node.left, extents), _fraction(node.right, extents)
        return a * b, p * q
    return _read(node, extents), 1
