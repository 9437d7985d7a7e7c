"""What a demand on sizes says about the parts that they are made of."""

from __future__ import annotations

from forge_pipeline.ir.sizes.expression import evaluate
from forge_pipeline.ir.sizes.interval import extents_of
from forge_pipeline.ir.sizes.polynomial import Atom, Interval, Size, Whole, made, names, terms_of

_FAR = 1 << 40
"""More than any extent is."""


def solutions(size: Size) -> dict[Atom, Whole]:
    """Return for each atom that ``size == 0`` can be solved for what it is equal to then."""
    found: dict[Atom, Whole] = {}
    for monomial, coefficient in size.terms:
        if len(monomial) != 1 or abs(coefficient) != 1:
            continue
        atom = monomial[0]
        rest = [(m, c) for m, c in size.terms if m != monomial]
        if any(_has(other, atom) for m, _ in rest for other in m):
            continue
        left = made(dict(rest))
        found[atom] = -left if coefficient > 0 else left
    return found


def _has(atom: Atom, part: Atom) -> bool:
    """Return whether ``part`` occurs in an atom."""
    if atom == part:
        return True
    if part.names.isdisjoint(atom.names):
        return False
    if atom.kind == "truncation":
        return True  # its tree is not searched
    return any(_has(inner, part) for arg in atom.sizes for m, _ in terms_of(arg) for inner in m)


def limits_of(size: Whole) -> tuple[str, Interval] | None:
    """Return the one extent of a size, and between what it must lie for the size not to be negative.

    None where the size has several extents, or is not seen to go up, or down, all the way with the one.
    """
    found = names(size)
    sign = direction(size)
    if len(found) != 1 or not sign:
        return None
    (name,) = found
    low, high = max((atom.low or 0 for atom in extents_of(size)), default=0), _FAR
    if (evaluate(size, {name: low}) >= 0) == (evaluate(size, {name: high}) >= 0):
        return None  # always, or never
    while high - low > 1:
        middle = (low + high) // 2
        if (evaluate(size, {name: middle}) >= 0) == (sign > 0):
            high = middle
        else:
            low = middle
    return name, ((high, None) if sign > 0 else (0, low))


def direction(size: Whole) -> int:
    """Return 1 where a size never goes down as its extents grow, -1 where it never goes up, else 0."""
    signs = set()
    for monomial, coefficient in terms_of(size):
        if not monomial:
            continue
        signs.add(1 if coefficient > 0 else -1)
        if not all(map(_grows, monomial)):
            return 0
        if len(monomial) > 1 and any(atom.low is None or atom.low < 0 for atom in monomial):
            return 0
    return signs.pop() if len(signs) == 1 else 0


def _grows(atom: Atom) -> bool:
    if atom.kind == "extent":
        return True
    if atom.kind == "floordiv":
        return isinstance(atom.args[1], int) and direction(atom.sizes[0]) > 0
    return atom.kind == "positive" and direction(atom.sizes[0]) > 0
