"""A second reader of what the sizes of a call must keep, as a library's metadata has it (docs/format.md).

A size is a number or a list of products ``[coefficient, atom, ...]``; an atom is ``[kind, ...]``: an extent by its
name, a floor division, what is positive of a size, whether one is zero or not negative, or a float that is truncated.
``ir.sizes.encoding`` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

FLOATS: Final = ("float16", "float32", "float64")

Evaluate = Callable[[Mapping[str, int]], Any]

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sqrt": np.sqrt,
}  # fmt: skip
_ATOMS: Final[Mapping[str, tuple[int, Callable[..., int]]]] = {
    "floordiv": (2, lambda a, b: a // b if b else 0),
    "positive": (1, lambda a: max(a, 0)),
    "is_zero": (1, lambda a: int(a == 0)),
    "not_negative": (1, lambda a: int(a >= 0)),
}


def value(size: Any, extents: Mapping[str, int]) -> int:
    """Return the value of an expression."""
    found: int = _size(size)(extents)
    return found


def _size(tree: Any) -> Evaluate:
    if type(tree) is int:
        return lambda sizes: tree
    products = [_product(part) for part in _listed(tree)]
    return lambda sizes: sum(product(sizes) for product in products)


def _product(tree: Any) -> Evaluate:
    coefficient, *atoms = _listed(tree)
    if type(coefficient) is not int:
        raise ValueError("a coefficient that is no whole number")
    factors = [_atom(atom) for atom in atoms]
    return lambda sizes: math.prod((factor(sizes) for factor in factors), start=coefficient)


def _atom(tree: Any) -> Evaluate:
    kind, *rest = _listed(tree)
    if kind == "extent":
        (name,) = rest
        return lambda sizes: sizes[name]
    if kind == "truncation":
        (inner,) = rest
        number = _real(inner)
        return lambda sizes: _truncated(number(sizes))
    count, function = _ATOMS[kind]
    parts = [_size(part) for part in rest]
    if len(parts) != count:
        raise ValueError(f"a {kind} of {len(parts)}")
    return lambda sizes: function(*(part(sizes) for part in parts))


def _real(tree: Any) -> Evaluate:
    """Return what computes a float made of sizes, each step rounded to its type."""
    op, dtype, *rest = _listed(tree)
    if dtype not in FLOATS:
        raise ValueError("a float of another type")
    kind = np.dtype(dtype).type
    if op == "number":
        value = kind(float.fromhex(rest[0]))
        return lambda sizes: value
    if op == "whole":
        whole = _size(rest[0])
        return lambda sizes: kind(whole(sizes))
    parts = [_real(part) for part in rest]
    if op == "cast":
        return lambda sizes: kind(parts[0](sizes))
    function = _FUNCTIONS[op]
    return lambda sizes: kind(function(*(part(sizes) for part in parts)))


def _truncated(number: Any) -> int:
    return int(number) if np.isfinite(number) else 0


def _listed(tree: Any) -> Sequence[Any]:
    if not isinstance(tree, list):
        raise ValueError("an expression that is no list")  # noqa: TRY004  it is read from a file
    return tree
