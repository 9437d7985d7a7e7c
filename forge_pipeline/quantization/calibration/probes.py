"""A few of the calibration samples: what quantization tries its choices on. They are held in memory, written nowhere.

Taken are the samples with the smallest digests, as many as fit a budget of bytes. Which ones these are depends on the
set of samples alone, not on their order or on how they are sharded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.data import Feed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """One sample: what the model is fed, and its labels (first axis: the batch) if it has any."""

    digest: str
    feed: Feed
    labels: NDArray[Any] | None

    @classmethod
    def of(cls, feed: Feed, labels: NDArray[Any] | None) -> Probe:
        """Take a sample, known by its content."""
        content = hashlib.sha256()
        for name, array in sorted(feed.items()):
            content.update(f"{name} {array.dtype} {array.shape}".encode())
            content.update(array.tobytes())
        if labels is not None:
            content.update(labels.tobytes())
        return cls(digest=content.hexdigest(), feed=feed, labels=labels)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(array.nbytes for array in self.feed.values())


def trim(probes: Iterable[Probe], budget: int) -> tuple[Probe, ...]:
    """Return the probes with the smallest digests whose sizes add up to ``budget`` bytes at most; always one."""
    kept: list[Probe] = []
    total = 0
    for probe in sorted(probes, key=lambda probe: probe.digest):
        total += probe.size
        if total > budget and kept:
            break
        kept.append(probe)
    return tuple(kept)


class Keeper:
    """Lets samples pass by, and keeps the probes among them."""

    def __init__(self, budget: int, labels: NDArray[Any] | None = None, total: int = 0) -> None:
        """``labels``: the same number of rows for each of the ``total`` feeds, in order."""
        self.budget, self.labels = budget, labels
        self.rows = 0 if labels is None else len(labels) // max(total, 1)
        self.probes: tuple[Probe, ...] = ()

    def watch(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield the feeds as they are."""
        for index, feed in enumerate(feeds):
            start = index * self.rows
            rows = None if self.labels is None else self.labels[start : start + self.rows]
            self.probes = trim((*self.probes, Probe.of(feed, rows)), self.budget)
            yield feed
