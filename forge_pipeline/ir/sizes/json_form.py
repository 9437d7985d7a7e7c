"""Sizes as JSON: a number, a name, or an operator with its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Atom, Overgrown, Size, Whole

_OPERATORS: Final[Mapping[str, Callable[[Sequence[Whole]], Whole]]] = {
    "+": e.total,
    "*": e.product,
    "floordiv": lambda args: e.floordiv(args[0], args[1]),
    "min": lambda args: e.minimum(*args),
    "max": lambda args: e.maximum(*args),
    "is_zero": lambda args: e.equal(args[0], 0),
    "not_negative": lambda args: e.at_least(args[0], 0),
}


def to_json(size: Whole) -> Any:
    """Return a size as JSON. Raises Overgrown for one that was cut from a float, which has no such form."""
    if isinstance(size, int):
        return size
    terms = [_product([c, *(_atom(atom) for atom in monomial)]) for monomial, c in size.terms]
    return terms[0] if len(terms) == 1 else ["+", *terms]


def from_json(item: Any, extents: Mapping[str, Whole]) -> Whole:
    """Return the size that ``to_json`` wrote, over these extents. Raises Overgrown where there is none."""
    if isinstance(item, str):
        if item not in extents:
            raise Overgrown
        return extents[item]
    if isinstance(item, int):
        return item
    return _OPERATORS[item[0]]([from_json(part, extents) for part in item[1:]])


def _product(factors: list[Any]) -> Any:
    if factors[0] == 1 and len(factors) > 1:
        del factors[0]
    return factors[0] if len(factors) == 1 else ["*", *factors]


def _atom(atom: Atom) -> Any:
    if atom.kind == "extent":
        return str(atom.args[0])
    if atom.kind not in _OPERATORS:
        raise Overgrown
    return [atom.kind, *(to_json(arg) for arg in atom.args if isinstance(arg, (int, Size)))]
