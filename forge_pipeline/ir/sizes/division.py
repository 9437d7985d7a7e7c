"""Floor division of sizes: what divides is split off, and what is left has one spelling where that can be."""

from __future__ import annotations

import math
from collections.abc import Iterable

from forge_pipeline.ir.sizes.interval import atom_of, bounds
from forge_pipeline.ir.sizes.polynomial import (
    MAX_TERMS,
    Atom,
    Monomial,
    Overgrown,
    Size,
    Whole,
    content,
    leading,
    made,
    terms_of,
)


def floordiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient rounded down. ``b`` is taken to be other than 0: no operator divides by it."""
    if isinstance(b, int):
        return _by_number(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    _, high = bounds(b)
    if high is not None and high <= 0:
        return floordiv(-a, -b)
    a, b = _cancelled(a, b)
    if isinstance(b, int):
        return _by_number(a, b)
    quotient, rest = _divided(a, b)
    (low, _), (least, _), (room, _) = bounds(rest), bounds(b), bounds(b - 1 - rest)
    if rest == 0 or (low is not None and low >= 0 and room is not None and room >= 0 and least is not None):
        return quotient
    if least is not None and least >= 0 and _is_just_below_zero(rest, b):
        return quotient - 1
    return quotient + atom_of("floordiv", f"floor({_factor(rest)}/{_factor(b)})", (rest, b))


def _is_just_below_zero(rest: Whole, b: Size) -> bool:
    """Return whether ``-b <= rest < 0`` for a ``b`` that is 1 at least."""
    (_, high), (room, _) = bounds(rest), bounds(b + rest)
    return high is not None and high < 0 and (rest == -1 or (room is not None and room >= 0))


def ceildiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient by a positive ``b``, rounded up."""
    return floordiv(a + b - 1, b)


def mod(a: Whole, b: Whole) -> Whole:
    """Return ``a - b * floor(a / b)``, which has the sign of ``b``."""
    if isinstance(b, int) and b == 1:
        return 0
    return a - b * floordiv(a, b)


def _by_number(a: Whole, b: int) -> Whole:
    """Split off what divides, and write what is left over the least divisor.

    The leading coefficient of what is left becomes at most half the divisor, by way of ``x // b == -((b-1-x) // b)``;
    where it is just half, it keeps its sign.
    """
    if b == 0:
        raise Overgrown
    if b < 0:
        a, b = -a, -b
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    quotient = made({monomial: c // b for monomial, c in a.terms})
    rest = made({monomial: c % b for monomial, c in a.terms})
    if isinstance(rest, int):
        return quotient
    lead = leading(rest)
    if 2 * lead > b or (2 * lead == b and leading(made({m: c for m, c in a.terms if c % b})) < 0):
        return quotient - _reduced(b - 1 - rest, b)
    return quotient + _reduced(rest, b)


def _reduced(a: Whole, b: int) -> Whole:
    """Return ``a // b`` where the sign of the leading coefficient is settled."""
    split = made({monomial: c // b for monomial, c in terms_of(a)})
    rest = made({monomial: c % b for monomial, c in terms_of(a)})
    if isinstance(rest, int):
        return split
    divisor, constant = content(rest)
    shared = math.gcd(divisor, b)
    if shared > 1:
        smaller = made({m: (c if m else constant) // shared for m, c in rest.terms})
        return split + _by_number(smaller, b // shared)
    low, high = bounds(rest)
    if low is not None and high is not None and low // b == high // b:
        return split + low // b
    nested = _nested(rest, b)
    return split + (atom_of("floordiv", f"floor({_factor(rest)}/{b})", (rest, b)) if nested is None else nested)


def _nested(rest: Size, b: int) -> Whole | None:
    """Return ``(x // c + k) // b`` as ``(x + k * c) // (b * c)``."""
    inner = [(monomial, c) for monomial, c in rest.terms if monomial]
    if len(inner) != 1 or inner[0][1] != 1 or len(inner[0][0]) != 1 or inner[0][0][0].kind != "floordiv":
        return None
    x, c = inner[0][0][0].sizes
    return _by_number(x + content(rest)[1] * c, b * c) if isinstance(c, int) else None


def _factor(size: Whole) -> str:
    text = str(size)
    return f"({text})" if isinstance(size, Size) and (len(size.terms) > 1 or size.atom is None) else text


def _cancelled(a: Whole, b: Size) -> tuple[Whole, Whole]:
    """Divide both by the atoms and the number that all their terms share; none is 0 where the quotient is defined.

    Flags are left alone: they are their own powers, so that a product does not say what its factors were.
    """
    terms = [*terms_of(a), *b.terms]
    shared = list(terms[0][0])
    for monomial, _ in terms[1:]:
        left, kept = list(monomial), []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    divisor = math.gcd(*(c for _, c in terms))
    shared = [atom for atom in shared if atom.low is not None and atom.low >= 0 and not atom.is_flag]
    if not shared and divisor == 1:
        return a, b
    reduced = [made({_without(m, shared): c // divisor for m, c in terms_of(size)}) for size in (a, b)]
    return reduced[0], reduced[1]


def _without(monomial: Monomial, factors: Iterable[Atom]) -> Monomial:
    left = list(monomial)
    for atom in factors:
        left.remove(atom)
    return tuple(left)


def _divided(a: Whole, b: Size) -> tuple[Whole, Whole]:
    """Return quotient and rest of a division by the leading term of ``b``; the rest keeps what does not go."""
    lead, coefficient = b.terms[0]
    quotient: Whole = 0
    if any(atom.is_flag for monomial, _ in (*terms_of(a), *b.terms) for atom in monomial):
        return (1, 0) if a == b else (quotient, a)
    for _ in range(MAX_TERMS):
        for monomial, c in terms_of(a):
            left = list(monomial)
            if c % coefficient == 0 and all(_taken(atom, left) for atom in lead):
                part = made({tuple(left): c // coefficient})
                quotient, a = quotient + part, a - part * b
                break
        else:
            return quotient, a
    raise Overgrown


def _taken(atom: Atom, left: list[Atom]) -> bool:
    if atom not in left:
        return False
    left.remove(atom)
    return True
