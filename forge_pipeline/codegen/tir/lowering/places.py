"""A place in a buffer as a sum: of what is one number in some stretch of a kernel, and of turns of the loops in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tvm_ffi
from tvm import tirx

from forge_pipeline.codegen.tir import rewriting


class Place(NamedTuple):
    """A sum of what does not change while a tile is in use and of multiples of turns of loops, and a number."""

    fixed: list[tuple[Any, int]]
    turns: list[tuple[Any, int]]
    """Loops and factors."""
    number: int

    def range(self) -> tuple[int, int]:
        """Return the least and the most of what changes."""
        ends = [factor * (int(loop.extent) - 1) for loop, factor in self.turns]
        return self.number + sum(min(end, 0) for end in ends), self.number + sum(max(end, 0) for end in ends)

    def less(self, least: int, kind: str) -> Any:
        """Return what changes, counted from ``least``."""
        total = tirx.const(self.number - least, kind)
        for loop, factor in self.turns:
            total = total + loop.loop_var * tirx.const(factor, kind)
        return total


def place_of(place: Any, turns: dict[Any, Any], named: Sequence[Any]) -> Place | None:
    """Return a place as a sum; None if it is none, or a loop that changes it is not so many turns from zero on."""
    found = Place([], [], 0)
    for term, factor in _terms(place, 1):
        if isinstance(term, tirx.IntImm):
            found = found._replace(number=found.number + int(term) * factor)
        elif term in turns:
            if not (_is_number(turns[term].min, 0) and isinstance(turns[term].extent, tirx.IntImm)):
                return None
            found.turns.append((turns[term], factor))
        elif any(seen in turns or any(seen.same_as(name) for name in named) for seen in rewriting.variables(term)):
            return None
        else:
            found.fixed.append((term, factor))
    return found


def _terms(sum_: Any, factor: int) -> Iterator[tuple[Any, int]]:
    """Yield what is added up in ``sum_``, and how often."""
    if isinstance(sum_, tirx.Add):
        yield from _terms(sum_.a, factor)
        yield from _terms(sum_.b, factor)
    elif isinstance(sum_, tirx.Sub):
        yield from _terms(sum_.a, factor)
        yield from _terms(sum_.b, -factor)
    elif isinstance(sum_, tirx.Mul) and isinstance(sum_.b, tirx.IntImm):
        yield from _terms(sum_.a, factor * int(sum_.b))
    elif isinstance(sum_, tirx.Mul) and isinstance(sum_.a, tirx.IntImm):
        yield from _terms(sum_.b, factor * int(sum_.a))
    else:
        yield sum_, factor


def are_same(one: list[tuple[Any, int]], other: list[tuple[Any, int]]) -> bool:
    """Return whether two sums are of equal terms."""
    left = list(other)
    for term, factor in one:
        equal = [at for at, (value, count) in enumerate(left) if count == factor and _equal(term, value)]
        if not equal:
            return False
        del left[equal[0]]
    return not left


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


def _is_number(expression: Any, number: int) -> bool:
    return isinstance(expression, tirx.IntImm) and int(expression) == number
