"""Bounds of sizes, from extents that are never negative.

A sum's bounds are those of its terms added up. Where that says nothing, a floor division is set between the quotient
and less than 1 under it, what is positive of a size above the size, and a comparison to both of its values; and what is
linear in floor divisions of a single extent repeats itself, so that one period of it says all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypeAlias

from forge_pipeline.ir.sizes.polynomial import (
    MAX_WEIGHT,
    Arg,
    Atom,
    Interval,
    Kind,
    Monomial,
    Overgrown,
    Size,
    Whole,
    names,
    of_atom,
    terms_of,
    weight,
)

Number: TypeAlias = "int | Fraction"
Sum: TypeAlias = "dict[Monomial, Number]"
_DEPTH: Final = 4
"""How many atoms of a sum are replaced by what they lie above, one after the other."""
_STEPS: Final = 4096
"""Sums that are looked at for one bound; a sum of many atoms has thousands of orders in which to replace four."""
_PERIOD: Final = 128
"""Values of an extent that are tried at most."""


def bounds(size: Whole) -> Interval:
    """Return the least and the greatest value that a size can have as far as it is known; None where it is not."""
    if isinstance(size, int):
        return size, size
    if size.known_bounds is None:
        memo = size.terms[0][0][0].memo
        found = None if memo is None else memo.get(size.terms)
        if found is None:
            found = _bounds(size)
            if memo is not None:
                memo[size.terms] = found
        size.known_bounds = found
    return size.known_bounds


def _bounds(size: Size) -> Interval:
    """Return the bounds of the terms added up, and better ones where terms of both signs may cancel."""
    terms: Sum = dict(size.terms)
    negative: Sum = {monomial: -c for monomial, c in size.terms}
    if len({c > 0 for monomial, c in size.terms if monomial}) == 1:
        low, high = _interval_low(terms), _interval_low(negative)
        return _whole(low), None if high is None else math.floor(-high)
    low, high = _lowest_by_parts(terms), _lowest_by_parts(negative)
    return _tighter((_whole(low), None if high is None else math.floor(-high)), _periodic(size))


def _whole(low: Number | None) -> int | None:
    return None if low is None else math.ceil(low)


def atom_of(kind: Kind, text: str, args: tuple[Arg, ...]) -> Size:
    """Return an atom as a size. Raises Overgrown."""
    sizes = [arg for arg in args if isinstance(arg, (int, Size))]
    floats = [arg for arg in args if not isinstance(arg, (int, Size, str))]
    whole = 1 + sum(map(weight, sizes)) + sum(part.weight for part in floats)
    if whole > MAX_WEIGHT:
        raise Overgrown
    found = frozenset().union(*map(names, sizes), *(part.names for part in floats))
    limits = floats[0].bounds() if floats else _atom_bounds(kind, sizes)
    memo = next((size.terms[0][0][0].memo for size in sizes if isinstance(size, Size)), None)
    return of_atom(Atom(kind, text, args, names=found, weight=whole, bounds=limits, memo=memo))


def _atom_bounds(kind: Kind, args: list[Whole]) -> Interval:
    if kind in ("is_zero", "not_negative"):
        return 0, 1
    intervals = [bounds(arg) for arg in args]
    if kind == "floordiv":
        return _quotient_bounds(*intervals)
    ((low, high),) = intervals
    return max(low or 0, 0), None if high is None else max(high, 0)


def _quotient_bounds(a: Interval, b: Interval) -> Interval:
    """Return bounds of a floor division by what is not negative, and so at least 1 where it is divided by."""
    if b[0] is None or b[0] < 0:
        return None, None
    least = max(b[0], 1)
    low = None if a[0] is None else (a[0] // least if a[0] < 0 else (0 if b[1] is None else a[0] // b[1]))
    high = None if a[1] is None else (a[1] // least if a[1] >= 0 else (-1 if b[1] is None else a[1] // b[1]))
    return low, high


def _tighter(a: Interval, b: Interval) -> Interval:
    lows, highs = [x for x in (a[0], b[0]) if x is not None], [x for x in (a[1], b[1]) if x is not None]
    return max(lows, default=None), min(highs, default=None)


def _lowest_by_parts(terms: Sum) -> Number | None:
    """Return a lower bound of a sum: those of parts without common names, which cannot cancel, added up.

    A detector's sum of what is left of each of 90 classes is 90 sums of two terms, in which all orders can be tried.
    """
    parts: list[tuple[frozenset[str], Sum]] = []
    for monomial, coefficient in terms.items():
        found, part = frozenset().union(*(atom.names for atom in monomial)), {monomial: coefficient}
        apart = []
        for other in parts:
            if found.isdisjoint(other[0]):
                apart.append(other)
            else:
                found, part = found | other[0], other[1] | part
        parts = [*apart, (found, part)]
    total: Number = 0
    for _, part in parts:
        low = _lowest(part, _DEPTH, iter(range(_STEPS)))
        if low is None:
            return None
        total += low
    return total


def _lowest(terms: Sum, depth: int, steps: Iterator[int]) -> Number | None:
    """Return a lower bound of a sum, after as many sums as there are ``steps``."""
    plain = _interval_low(terms)
    if not depth or next(steps, None) is None:
        return plain
    for atom, sums in _cases(terms):
        cases = [_lowest(_with(terms, atom, value), depth - 1, steps) for value in sums]
        return _greater(plain, None if None in cases else min(case for case in cases if case is not None))
    for monomial, coefficient in terms.items():
        found = plain
        for relaxed in _relaxations(monomial, coefficient):
            others = {m: c for m, c in terms.items() if m != monomial}
            for m, c in relaxed.items():
                others[m] = others.get(m, 0) + c
            found = _greater(found, _lowest({m: c for m, c in others.items() if c}, depth - 1, steps))
        if found != plain:
            return found
    return plain


def _greater(a: Number | None, b: Number | None) -> Number | None:
    return a if b is None else (b if a is None else max(a, b))


def _relaxations(monomial: Monomial, coefficient: Number) -> Iterator[Sum]:
    """Yield sums that ``coefficient * monomial`` is at least, its last atom of a kind that has one replaced.

    The other factors are not negative.
    """
    for index, atom in enumerate(monomial):
        rest = monomial[:index] + monomial[index + 1 :]
        if any(other.low is None or other.low < 0 for other in rest):
            continue
        for part in _below(atom, coefficient):
            yield {_joined(m, rest): c for m, c in part.items()}


def _joined(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted((*a, *b), key=lambda atom: atom.text)) if b else a


def _below(atom: Atom, coefficient: Number) -> Iterator[Sum]:
    if atom.kind == "floordiv" and isinstance(atom.args[1], int):
        x, b = atom.sizes
        if isinstance(b, int):
            part: Sum = {m: Fraction(c * coefficient) / b for m, c in terms_of(x)}
            if coefficient > 0:
                part[()] = part.get((), 0) - coefficient * Fraction(b - 1, b)
            yield part
    elif atom.kind == "positive" and coefficient > 0:
        yield {m: c * coefficient for m, c in terms_of(atom.sizes[0])}


def _cases(terms: Sum) -> Iterator[tuple[Atom, tuple[Sum, Sum]]]:
    """Yield an atom that is one of two sums, with both: a flag, and what is positive where that is taken away."""
    for monomial, coefficient in terms.items():
        for atom in monomial:
            if atom.is_flag:
                yield atom, ({}, {(): 1})
                return
            if atom.kind == "positive" and coefficient < 0:
                yield atom, ({}, dict(terms_of(atom.sizes[0])))
                return


def _with(terms: Sum, atom: Atom, value: Sum) -> Sum:
    """Return a sum with an atom replaced, as often as its power says."""
    result: Sum = {}
    for monomial, c in terms.items():
        parts: Sum = {tuple(other for other in monomial if other != atom): c}
        for _ in range(len(monomial) - len(next(iter(parts)))):
            parts = {_joined(m, n): a * b for m, a in parts.items() for n, b in value.items()}
        for m, a in parts.items():
            result[m] = result.get(m, 0) + a
    return {monomial: c for monomial, c in result.items() if c}


def _interval_low(terms: Sum) -> Number | None:
    low: Number = 0
    for monomial, coefficient in terms.items():
        least, most = _monomial_bounds(monomial)
        end = least if coefficient > 0 else most
        if end is None:
            return None
        low += coefficient * end
    return low


def _monomial_bounds(monomial: Monomial) -> Interval:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        low, high = _product_bounds((low, high), (atom.low, atom.high))
    if low is None and len(monomial) % 2 == 0 and monomial[::2] == monomial[1::2]:
        low = 0  # an even power
    return low, high


def _product_bounds(a: Interval, b: Interval) -> Interval:
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        return a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1]
    if None in a or None in b:
        return None, None
    ends = [x * y for x in a for y in b if x is not None and y is not None]
    return min(ends), max(ends)


def _periodic(size: Size) -> Interval:
    """Return the bounds of what is linear in one extent and in floor divisions of it by numbers.

    It grows by the same amount over each period, the least common multiple of the divisors: where that is not
    negative, the first period has the least value, where it is not positive the greatest.
    """
    period = _period(size)
    if period is None or period > _PERIOD:
        return None, None
    start = next(atom.low for atom in extents_of(size)) or 0
    values = [_at(size, start + step) for step in range(period)]
    slope = _at(size, start + period) - values[0]
    return min(values) if slope >= 0 else None, max(values) if slope <= 0 else None


def _period(size: Whole) -> int | None:
    if isinstance(size, int):
        return 1
    if len(size.names) != 1:
        return None
    periods = [1]
    for monomial, _ in size.terms:
        if len(monomial) > 1:
            return None
        for atom in monomial:
            found = 1 if atom.kind == "extent" else None
            if atom.kind == "floordiv" and isinstance(atom.args[1], int):
                inner = _period(atom.sizes[0])
                found = None if inner is None else inner * atom.args[1]
            if found is None:
                return None
            periods.append(found)
    return math.lcm(*periods)


def extents_of(size: Whole) -> Iterator[Atom]:
    """Yield the extents that a size is made of, each as often as it occurs; not those within floats."""
    for monomial, _ in terms_of(size):
        for atom in monomial:
            if atom.kind == "extent":
                yield atom
            else:
                for arg in atom.sizes:
                    yield from extents_of(arg)


def _at(size: Whole, value: int) -> int:
    """Return a size of the form that ``_period`` accepts at a value of its extent."""
    result = 0
    for monomial, coefficient in terms_of(size):
        factor = 1
        for atom in monomial:
            factor = value if atom.kind == "extent" else _at(atom.sizes[0], value) // _at(atom.sizes[1], value)
        result += coefficient * factor
    return result
