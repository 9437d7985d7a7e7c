"""What a recurrent layer is to its kernels: directions, sequences that go together, and blocks of states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

TILE = 4
"""Sequences that go through the steps together, and share what is read of the recurrence matrix."""

WIDTHS = {"LSTM": 16, "GRU": 16, "RNN": 32}
"""States of a block: sums and functions of as many vectors as hide the latency of additions and of exponentials."""

LATE_RESET_WIDTH = 32
"""States of a block of a GRU whose candidate is a product by itself, of the state that was reset."""

LEAST_WIDTH = 4

PART = 16
"""Sums side by side: two vectors of AVX2, one of AVX-512."""

_vectors: ContextVar[tuple[int, int]] = ContextVar("vectors", default=(8, 16))


@contextmanager
def for_vectors(lanes: int, registers: int) -> Iterator[None]:
    """Make kernels, meanwhile, for vectors of so many float32 lanes, and so many registers."""
    token = _vectors.set((lanes, registers))
    try:
        yield
    finally:
        _vectors.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``hidden`` states of ``dtype``; ``reversals``: for each direction, whether it begins with the last step.

    Of two directions the second is reversed. ``width``: states of a block, of which the last may have fewer.
    ``is_parallel``: the sequences are shared out among the threads. ``is_coupled``: what an LSTM forgets is what it
    takes no new input for.
    """

    hidden: int
    dtype: str
    reversals: tuple[bool, ...]
    width: int
    is_parallel: bool
    has_lengths: bool = False
    is_coupled: bool = False

    @property
    def directions(self) -> int:
        """How many directions there are."""
        return len(self.reversals)

    @property
    def blocks(self) -> int:
        """How many blocks of states there are."""
        return -(-self.hidden // self.width)

    @property
    def rest(self) -> int:
        """States of the last block, where they are fewer than of others."""
        return self.hidden % self.width

    def part(self, gates: int) -> int:
        """Return how many sums of a sequence are side by side, of so many gates of a block."""
        return next(part for part in (PART, 8, 4) if gates * self.width % part == 0)

    def parts(self, gates: int) -> int:
        """Return how many such parts the sums of a block have."""
        return gates * self.width // self.part(gates)

    def together(self, gates: int, sequences: int) -> int:
        """Return how many parts go through the sums together: half of the registers hide how long an addition takes."""
        (lanes, registers), parts = _vectors.get(), self.parts(gates)
        vectors = sequences * -(-self.part(gates) // lanes)
        return max(
            count
            for count in range(1, parts + 1)
            if (parts % count == 0 and count * vectors <= registers // 2) or count == 1
        )

    def sums(self, gates: int, sequences: int) -> int:
        """Return how many sums are in registers then."""
        return sequences * self.together(gates, sequences) * self.part(gates)

    def tiles(self, batch: Any) -> Any:
        """Return how many tiles of sequences a direction has."""
        return (batch + TILE - 1) // TILE

    def rows(self, tile: Any, batch: Any) -> Any:
        """Return how many sequences a tile has."""
        return tirx.min(batch - tile * TILE, tirx.const(TILE, "int64"))

    def of(self, direction: Any, first: Any, last: Any) -> Any:
        """Return what belongs to a direction."""
        return tirx.Select(direction == 0, first, last) if self.directions > 1 else first

    def moment(self, direction: Any, time: Any, steps: Any) -> Any:
        """Return which step comes at ``time``."""
        if self.directions > 1:
            return time + direction * (steps - 1 - 2 * time)
        return steps - 1 - time if self.reversals[0] else time

    def extent(self, batch: Any) -> Any:
        """Return the extent of the buffer of lengths."""
        return batch if self.has_lengths else tirx.const(1, "int64")

    def count(self, lengths: Any, row: Any, steps: Any) -> Any:
        """Return how many steps a sequence has."""
        if not self.has_lengths:
            return steps
        return tirx.max(tirx.min(lengths[row].astype("int64"), steps), tirx.const(0, "int64"))

    def started(self, state: Any, lengths: Any, row: Any, steps: Any) -> Any:
        """Return what a state is before its first step: nothing where there is none, as ONNX Runtime has it."""
        if not self.has_lengths:
            return state
        return tirx.Select(self.count(lengths, row, steps) > 0, state, tirx.const(0, self.dtype))

    def loop(self, extent: Any) -> Any:
        """Return the loop over what may run side by side."""
        return T.parallel(extent) if self.is_parallel else T.serial(extent)

    def some(self, count: int) -> Any:
        """Return the loop over ``count`` states of a block: a vector, unless there are fewer than in others."""
        return T.vectorized(count) if count == self.width else T.serial(count)


def width_of(kind: str, hidden: int, *, resets_late: bool = False) -> int:
    """Return how many states a block has: no more than twice what few states need."""
    width = LATE_RESET_WIDTH if resets_late else WIDTHS[kind]
    while width > LEAST_WIDTH and width // 2 >= hidden:
        width //= 2
    return width


def in_blocks(matrix: np.ndarray[Any, Any], gates: int, form: Form) -> np.ndarray[Any, Any]:
    """Return (directions, gates * hidden, columns) as (directions, blocks, parts, columns, gates * width / parts)."""
    directions, rows, columns = matrix.shape
    hidden, blocks, width = rows // gates, form.blocks, form.width
    full = np.zeros((directions, gates, blocks * width, columns), matrix.dtype)
    full[:, :, :hidden] = matrix.reshape(directions, gates, hidden, columns)
    split = full.reshape(directions, gates, blocks, width, columns).transpose(0, 2, 1, 3, 4)
    apart = split.reshape(directions, blocks, form.parts(gates), form.part(gates), columns)
    return np.ascontiguousarray(apart.transpose(0, 1, 2, 4, 3))
