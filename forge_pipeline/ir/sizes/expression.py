"""Whole numbers made of extents: a polynomial normal form, so that equal sizes are seen to be equal.

A size is a sum of whole coefficients times products of atoms. An atom is a named extent, which is never negative, or
what no polynomial says: a floor division, what is positive of a size (and 0 where it is negative), a comparison (1
where it holds, else 0), or a float expression cut to a whole number (``ir.sizes.real``). Arithmetic is that of the
whole numbers: a size is taken to fit the element type that holds it.

Two sizes that are equal as Python objects are equal for all extents. The reverse holds for polynomials, and for floor
divisions by constants as far as their quotients can be split off; otherwise ``bounds`` and ``equal`` decide what they
can prove, and leave the rest open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from forge_pipeline.ir.sizes.division import ceildiv, floordiv, mod
from forge_pipeline.ir.sizes.interval import atom_of, bounds
from forge_pipeline.ir.sizes.polynomial import (
    MAX_DEGREE,
    Atom,
    Float,
    Interval,
    Memo,
    Overgrown,
    Size,
    Substitution,
    Whole,
    content,
    leading,
    names,
    of_atom,
    weight,
)

__all__ = [
    "MAX_DEGREE", "Interval", "Overgrown", "Size", "Substitution", "Whole", "absolute", "at_least", "bounds", "ceildiv",
    "content", "equal", "evaluate", "extent", "floordiv", "is_one", "is_zero", "maximum", "minimum", "mod", "names",
    "negated", "product", "replaced", "select", "substitute", "total", "truncation", "truncdiv", "weight",
]  # fmt: skip


def extent(name: str, high: int | None = None, low: int = 0, memo: Memo | None = None) -> Size:
    """Return an extent by its name; it lies between ``low`` and ``high``.

    ``memo`` takes the bounds of what is made of the extent: extents that share it are the same where their names are.
    """
    text = name if name.isidentifier() else repr(name)
    return of_atom(Atom("extent", text, (name,), names=frozenset((name,)), weight=1, bounds=(low, high), memo=memo))


def truncdiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient rounded towards zero, as ONNX divides integers. ``b`` is taken to be other than 0.

    Raises Overgrown where the sign of ``b`` is not known.
    """
    low, high = bounds(b)
    if low is None or low < 0:
        if high is None or high > 0:
            raise Overgrown
        a, b = -a, -b
    low, high = bounds(a)
    if low is not None and low >= 0:
        return floordiv(a, b)
    if high is not None and high <= 0:
        return -floordiv(-a, b)
    return select(at_least(a, 0), floordiv(a, b), -floordiv(-a, b))


def minimum(*sizes: Whole) -> Whole:
    """Return the least of the sizes."""
    first, *others = sizes
    for other in others:
        first = first + other - _greater(first, other)
    return first


def maximum(*sizes: Whole) -> Whole:
    """Return the greatest of the sizes."""
    first, *others = sizes
    for other in others:
        first = _greater(first, other)
    return first


def _greater(a: Whole, b: Whole) -> Whole:
    """Return ``b + max(a - b, 0)``, or the same of ``b - a``: the one whose leading coefficient is positive.

    So there is one spelling: a minimum is a sum less a maximum, and what two maxima have in common cancels out.
    """
    difference = a - b
    if isinstance(difference, int):
        return a if difference >= 0 else b
    low, high = bounds(difference)
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return b
    if leading(difference) < 0:
        difference, b = -difference, a
    divisor, constant = content(difference)
    if constant % divisor == 0:
        difference = floordiv(difference, divisor)
    else:
        divisor = 1
    return b + divisor * atom_of("positive", f"max({difference}, 0)", (difference,))


def equal(a: Whole, b: Whole) -> Whole:
    """Return 1 where the two are equal, 0 where they are not, and an expression where that depends on extents."""
    difference = a - b
    if isinstance(difference, int):
        return int(difference == 0)
    low, high = bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return 0
    if low == high == 0:
        return 1
    if low is not None and high is not None and high - low == 1:  # 0 or 1, or else -1 or 0
        return 1 - difference if low == 0 else 1 + difference
    divisor, constant = content(difference)
    if constant % divisor:
        return 0
    difference = floordiv(difference, divisor)
    if leading(difference) < 0:
        difference = -difference
    return atom_of("is_zero", f"[{difference} == 0]", (difference,))


def at_least(a: Whole, b: Whole) -> Whole:
    """Return 1 where ``a >= b``, 0 where not, and an expression where that depends on extents."""
    difference = a - b
    if isinstance(difference, int):
        return int(difference >= 0)
    low, high = bounds(difference)
    if low is not None and low >= 0:
        return 1
    if high is not None and high < 0:
        return 0
    if low == -1 and high == 0:
        return 1 + difference
    if leading(difference) < 0:
        return 1 - at_least(-difference - 1, 0)
    difference = floordiv(difference, content(difference)[0])
    return atom_of("not_negative", f"[{difference} >= 0]", (difference,))


def select(condition: Whole, a: Whole, b: Whole) -> Whole:
    """Return ``a`` where the condition is 1 and ``b`` where it is 0."""
    if isinstance(condition, int):
        return a if condition else b
    return b if a == b else b + condition * (a - b)


def negated(condition: Whole) -> Whole:
    """Return 1 for 0 and 0 for 1."""
    return 1 - condition


def absolute(a: Whole) -> Whole:
    """Return the magnitude."""
    return maximum(a, -a)


def truncation(real: Float) -> Whole:
    """Return a float expression cut to a whole number, towards zero, as Cast does."""
    return atom_of("truncation", f"int({real})", (real,))


def product(sizes: Iterable[Whole]) -> Whole:
    """Return the product; 1 for none."""
    result: Whole = 1
    for size in sizes:
        result = result * size
    return result


def total(sizes: Iterable[Whole]) -> Whole:
    """Return the sum; 0 for none."""
    result: Whole = 0
    for size in sizes:
        result = result + size
    return result


def is_one(size: Whole) -> bool:
    """Return whether the size is 1 whatever the extents."""
    return isinstance(size, int) and size == 1


def is_zero(size: Whole) -> bool:
    """Return whether the size is proved to be 0."""
    return bounds(size) == (0, 0)


def evaluate(size: Whole, extents: Mapping[str, int]) -> int:
    """Return the size at the given extents. Raises KeyError for one that is missing, Overgrown for a division by 0."""
    if isinstance(size, int):
        return size
    result = 0
    for monomial, coefficient in size.terms:
        value = coefficient
        for atom in monomial:
            value *= _evaluated(atom, extents)
        result += value
    return result


def substitute(size: Whole, mapping: Mapping[str, Whole]) -> Whole:
    """Return the size with extents replaced by sizes, all at once. Raises Overgrown."""
    if isinstance(size, int) or size.names.isdisjoint(mapping):
        return size
    return replaced(size, Substitution({str(extent(name)): new for name, new in mapping.items()}, frozenset(mapping)))


def replaced(size: Whole, change: Substitution) -> Whole:
    """Return the size with atoms replaced by sizes, all at once. Raises Overgrown."""
    if isinstance(size, int) or not change.touches(size.names):
        return size
    result: Whole = 0
    for monomial, coefficient in size.terms:
        value: Whole = coefficient
        for atom in monomial:
            value = value * (_replaced(atom, change) if change.touches(atom.names) else of_atom(atom))
        result = result + value
    return result


def _evaluated(atom: Atom, extents: Mapping[str, int]) -> int:
    (first, *_) = atom.args
    if isinstance(first, str):
        return extents[first]
    if not isinstance(first, (int, Size)):
        return first.truncated(extents)
    values = [evaluate(arg, extents) for arg in atom.sizes]
    if atom.kind == "floordiv" and values[1] == 0:
        raise Overgrown
    return _ON_NUMBERS[atom.kind](values)


_ON_NUMBERS: Final[Mapping[str, Callable[[list[int]], int]]] = {
    "floordiv": lambda values: values[0] // values[1],
    "positive": lambda values: max(values[0], 0),
    "is_zero": lambda values: int(values[0] == 0),
    "not_negative": lambda values: int(values[0] >= 0),
}


def _replaced(atom: Atom, change: Substitution) -> Whole:
    if atom.text in change.by_text:
        return change.by_text[atom.text]
    (first, *_) = atom.args
    if isinstance(first, str):
        return of_atom(atom)
    if not isinstance(first, (int, Size)):
        return first.substituted(change).to_whole()
    return ON_SIZES[atom.kind]([replaced(arg, change) for arg in atom.sizes])


ON_SIZES: Final[Mapping[str, Callable[[list[Whole]], Whole]]] = {
    "floordiv": lambda args: floordiv(args[0], args[1]),
    "positive": lambda args: maximum(args[0], 0),
    "is_zero": lambda args: equal(args[0], 0),
    "not_negative": lambda args: at_least(args[0], 0),
}
"""How an atom of each kind is made of its arguments."""
