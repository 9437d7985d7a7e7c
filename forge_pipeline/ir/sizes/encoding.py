"""Sizes as JSON: numbers as they are, sums as lists of products, and back."""

from __future__ import annotations

from typing import Any

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes import real
from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.polynomial import Arg, Atom
from forge_pipeline.ir.sizes.real import Real


def to_json(size: Whole) -> Any:
    """Return a size as JSON: a number, or a list of products ``[coefficient, atom, ...]``, an atom ``[kind, ...]``."""
    if isinstance(size, int):
        return size
    return [[coefficient, *map(_atom, monomial)] for monomial, coefficient in size.terms]


def from_json(data: Any) -> Whole:
    """Return what ``to_json`` wrote. Raises ValueError or TypeError for anything else."""
    if type(data) is int:
        return data
    return e.total(map(_product, data))


def _atom(atom: Atom) -> list[Any]:
    return [atom.kind, *map(_arg, atom.args)]


def _arg(arg: Arg) -> Any:
    if isinstance(arg, str):
        return arg
    if isinstance(arg, (int, Size)):
        return to_json(arg)
    assert isinstance(arg, Real)  # noqa: S101  there is no other float
    return _real(arg)


def _real(value: Real) -> list[Any]:
    parts = [_real(arg) if isinstance(arg, Real) else _leaf(arg) for arg in value.args]
    return [value.op, value.dtype, *parts]


def _leaf(arg: Whole | float) -> Any:
    return arg.hex() if isinstance(arg, float) else to_json(arg)


def _product(part: Any) -> Whole:
    if not isinstance(part, list) or not part or type(part[0]) is not int:
        raise ValueError("a product is a coefficient and atoms")
    result: Whole = part[0]
    for atom in part[1:]:
        result = result * _from_atom(atom)
    return result


def _from_atom(data: Any) -> Whole:
    kind, *args = data
    if kind == "extent":
        return e.extent(str(args[0]))
    if kind == "truncation":
        return _from_real(args[0]).to_whole()
    if kind not in e.ON_SIZES:
        raise ValueError(f"no atom is a {kind!r}")
    return e.ON_SIZES[kind]([from_json(arg) for arg in args])


def _from_real(data: Any) -> Real:
    op, dtype, *args = data
    if op == "whole":
        return real.of_size(from_json(args[0]), dtype)
    if op == "number":
        return real.of_number(float.fromhex(args[0]), dtype)
    return real.apply(op, dtype, *map(_from_real, args))
