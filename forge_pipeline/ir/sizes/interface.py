"""The extents of a model's inputs: named, fixed, open, or expressions over other names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from onnx import TypeProto, ValueInfoProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.value import UNKNOWN, Known

_LONGEST: Final = 256
"""Characters of a dimension's name that is read as an expression."""


def inputs_of(values: Iterable[ValueInfoProto]) -> dict[str, Known]:
    """Return what a graph's inputs are, by name.

    A dimension's name is an extent. A dimension without name, or whose number is not positive, is an extent of its
    own, called ``<input>_<axis>``. A name such as ``2*seq`` or ``past + seq`` is an expression, if all that it names
    are extents by themselves elsewhere.
    """
    values = list(values)
    written = {text for value in values for text in _texts(value.type)}
    plain = {text for text in written if text.isidentifier()}
    taken = set(written)
    return {value.name: _known(value.type, value.name, plain, taken) for value in values}


def parsed(text: str, names: Iterable[str]) -> Whole | None:
    """Return an expression over ``names`` as exporters write it, None where it is none."""
    if len(text) > _LONGEST:
        return None
    try:
        return _read(ast.parse(text, mode="eval").body, frozenset(names))
    except (SyntaxError, ValueError, RecursionError, MemoryError, Overgrown):
        return None


def _texts(kind: TypeProto) -> list[str]:
    kind = _tensor(kind)
    return [dim.dim_param for dim in kind.tensor_type.shape.dim if dim.dim_param]


def _tensor(kind: TypeProto) -> TypeProto:
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind.optional_type.elem_type
    return kind


def _known(kind: TypeProto, name: str, plain: set[str], taken: set[str]) -> Known:
    if kind.HasField("optional_type"):
        return _known(kind.optional_type.elem_type, name, plain, taken)
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
            found = None if dim.dim_param in plain else parsed(dim.dim_param, plain)
            shape.append(e.extent(dim.dim_param) if found is None else found)
        else:
            shape.append(e.extent(unused(f"{name}_{axis}", taken)))
    return Known(tensor.elem_type, tuple(shape))


def unused(name: str, taken: set[str]) -> str:
    """Return ``name``, or with a number behind it where it is taken; from then on it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Whole, Whole], Whole]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: e.floordiv,
    ast.Mod: e.mod,
}
_CALLS: Final[Mapping[str, Callable[..., Whole]]] = {"max": e.maximum, "min": e.minimum, "mod": e.mod}


def _read(node: ast.expr, names: frozenset[str]) -> Whole:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return e.extent(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_read(node.left, names), _read(node.right, names))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        power = node.right.value
        if type(power) is int and 0 <= power <= e.MAX_DEGREE:
            return e.product([_read(node.left, names)] * power)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and not node.keywords:
        name = node.func.id.lower()
        if name in ("floor", "ceil", "ceiling") and len(node.args) == 1:
            return _rounded(node.args[0], names, up=name != "floor")
        if name in _CALLS:
            return _CALLS[name](*(_read(arg, names) for arg in node.args))
    raise ValueError


def _rounded(node: ast.expr, names: frozenset[str], *, up: bool) -> Whole:
    """Return a quotient rounded down or up: ``floor(h/2)``, ``floor(h/2 - 1/2)``."""
    numerator, denominator = _fraction(node, names)
    return e.ceildiv(numerator, denominator) if up else e.floordiv(numerator, denominator)


def _fraction(node: ast.expr, names: frozenset[str]) -> tuple[Whole, int]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        (a, p), (b, q) = _fraction(node.left, names), _fraction(node.right, names)
        return (a * q + b * p if isinstance(node.op, ast.Add) else a * q - b * p), p * q
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        (a, p), below = _fraction(node.left, names), _read(node.right, names)
        if not isinstance(below, int) or below <= 0:
            raise ValueError
        return a, p * below
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        (a, p), (b, q) = _fraction(node.left, names), _fraction(node.right, names)
        return a * b, p * q
    return _read(node, names), 1
