"""Offsets of values in one piece of memory, such that none that are needed at once overlap.

A value lies where nothing else lies during its life, largest first: the offline assignment of offsets of Pisarchyk and
Lee ("Efficient Memory Management for Deep Neural Net Inference", 2020). Values that are put side by side may lie inside
the whole from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

ALIGNMENT = 64
"""Bytes: kernels are compiled for tensors that start at a cache line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A value of ``size`` bytes that is needed from one binding to another, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Return whether both are needed at once."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Offsets of values, in bytes, and the ``size`` of the piece of memory that they lie in."""

    offsets: tuple[int, ...]
    size: int


def plan(lives: Sequence[Life]) -> Plan:
    """Return places for values such that none that are needed at once overlap: the best of several orders."""
    orders = (
        sorted(range(len(lives)), key=lambda index: (-lives[index].size, lives[index].first)),
        sorted(range(len(lives)), key=lambda index: -lives[index].size * (1 + lives[index].last - lives[index].first)),
        sorted(range(len(lives)), key=lambda index: (lives[index].first, -lives[index].size)),
    )
    least = most_at_once(lives)
    best: Plan | None = None
    for order in orders:
        found = _in_order(lives, order)
        best = found if best is None or found.size < best.size else best
        if best.size == least:
            break
    assert best is not None  # noqa: S101 - there are orders
    return best


def most_at_once(lives: Sequence[Life]) -> int:
    """Return how many bytes are needed at once at most: no plan takes less."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + _aligned(life.size)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - _aligned(life.size)
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def _in_order(lives: Sequence[Life], order: Iterable[int]) -> Plan:
    """Place one value after the other, each as low as it fits."""
    placed: list[tuple[int, int]] = []  # offset and index, ascending
    for index in order:
        at, size = 0, _aligned(lives[index].size)
        for offset, other in placed:
            if lives[other].meets(lives[index]):
                if offset - at >= size:
                    break
                at = max(at, offset + _aligned(lives[other].size))
        placed.append((at, index))
        placed.sort()
    offsets = {index: offset for offset, index in placed}
    return Plan(
        offsets=tuple(offsets[index] for index in range(len(lives))),
        size=max((offset + _aligned(lives[index].size) for offset, index in placed), default=0),
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat:
    """A kernel call that copies ``parts``, in order, into ``whole``; all are variables."""

    binding: int
    parts: tuple[Any, ...]
    whole: Any


@dataclass(slots=True, kw_only=True)
class Nested:
    """Values inside others: ``inside`` maps one to what it lies in, and its offset there, in bytes."""

    inside: dict[Any, tuple[Any, int]] = field(default_factory=dict)

    def place(self, value: Any) -> tuple[Any, int]:
        """Return the outermost value that ``value`` lies in, and its offset there."""
        offset = 0
        while value in self.inside:
            value, more = self.inside[value]
            offset += more
        return value, offset

    def lives(self, lives: Mapping[Any, Life]) -> dict[Any, Life]:
        """Return the lives of what lies in nothing else, each as long as anything in it lives."""
        found: dict[Any, Life] = {value: life for value, life in lives.items() if value not in self.inside}
        for value in self.inside:
            outer, life = self.place(value)[0], lives[value]
            known = found[outer]
            found[outer] = replace(known, first=min(known.first, life.first), last=max(known.last, life.last))
        return found


def nest(lives: Mapping[Any, Life], concats: Iterable[Concat]) -> tuple[Nested, set[int]]:
    """Return which values lie in others, and the bindings of the copies that this saves.

    One that makes more bytes needed at once stays a copy: its whole would be there as early as its first part.
    """
    nested, saved = Nested(), set[int]()
    least = most_at_once(list(lives.values()))
    for concat in concats:
        offsets = [0, *accumulate(lives[part].size for part in concat.parts)]
        placed = any(part in nested.inside for part in concat.parts)
        disjoint = not placed and len(set(concat.parts)) == len(concat.parts)
        if not disjoint or any(offset % ALIGNMENT for offset in offsets[:-1]):
            continue
        inside = {part: (concat.whole, offset) for part, offset in zip(concat.parts, offsets, strict=False)}
        tried = Nested(inside={**nested.inside, **inside})
        needed = most_at_once(list(tried.lives(lives).values()))
        if needed <= least:
            nested, least = tried, needed
            saved.add(concat.binding)
    return nested, saved
