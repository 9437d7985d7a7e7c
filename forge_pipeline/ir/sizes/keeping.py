"""Whether sizes keep what a library demands of them, by the constraints in its metadata, and such as do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from forge_pipeline.ir.sizes.encoding import from_json
from forge_pipeline.ir.sizes.expression import Overgrown, Whole, evaluate, names


def call_sizes(
    free: Iterable[str], given: Mapping[str, int], before: int, count: int, keeps: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Yield sizes that a library takes for a call of ``count`` tokens behind ``before``: ``given``, and of the ``free``
    extents each that many, or all there are then; behind these, some of them 1, such as frames that are listened to."""
    names = [name for name in dict.fromkeys(free) if name not in given]
    likely = (count, before + count)
    for sizes in (likely, (*likely, 1)):
        for choice in itertools.product(dict.fromkeys(sizes), repeat=len(names)):
            found = {**given, **dict(zip(names, choice, strict=True))}
            if (sizes is likely or 1 in choice) and keeps(found):
                yield found


def keeping(constraints: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, int]], bool]:
    """Return a function that says of sizes, by the names of extents, whether every constraint holds.

    One that names others may hold.
    """
    return holding((from_json(row["size"]), row["at_least"]) for row in constraints)


def holding(demands: Iterable[tuple[Whole, bool]]) -> Callable[[Mapping[str, int]], bool]:
    """Return what `keeping` does, of sizes that must be 0, or with True must not be negative."""
    rows = list(demands)

    def keeps(sizes: Mapping[str, int]) -> bool:
        try:
            found = ((evaluate(size, sizes), at_least) for size, at_least in rows if names(size) <= sizes.keys())
            return all(value >= 0 if at_least else value == 0 for value, at_least in found)
        except Overgrown:
            return False

    return keeps
