"""Kernels that gather mean and variance, of all that is normalized together, in one reading.

A piece that stays in the first cache gives its mean, then its squares around that mean, and pieces are put together as
Chan, Golub and LeVeque do ("Updating formulae and a pairwise algorithm for computing sample variances", 1979). Nothing
cancels out, whatever the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tvm import tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import Extents, attributes, made_once, own, size, unravelled
from forge_pipeline.codegen.tir import script

NAME: Final = "moments"
KIND: Final = "float32"
PIECE: Final = 4096
"""Numbers of a piece: half of a first cache of 32 KiB."""
VECTORS: Final = 4
"""Vectors of sums side by side: they hide the latency of additions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """``steps`` times ``lanes`` numbers, ``at(task, step, lane)`` in a tensor; each lane gets moments of its own."""

    steps: Any
    lanes: int
    width: int
    at: Callable[[Any, Any, Any], tuple[Any, ...]]

    @property
    def side(self) -> int:
        """How many steps are added up side by side."""
        return max(1, VECTORS * self.width // self.lanes)

    def gathering(self) -> Any:
        """Return what, in a kernel, gives each lane of ``task`` its mean, and the sum of squares around that."""
        steps, lanes, width, side, at = self.steps, self.lanes, self.width, self.side, self.at
        piece = max(1, PIECE // (lanes * side)) * side

        def many(block: Any) -> Any:
            """Return how many steps a piece has: one at least, so that nobody divides by none of a run of no steps."""
            return tirx.max(tirx.min(piece, steps - block * piece), 1)

        def share(block: Any) -> Any:
            """Return the part that a piece is of all that is read with it."""
            return tirx.Cast(KIND, many(block)) / tirx.Cast(KIND, block * piece + many(block))

        @script.inline
        def sums(X, task, begin, count, SUMS, term):  # type: ignore[no-untyped-def]
            for vector in T.serial(side * lanes // width):
                for lane in T.vectorized(width):
                    SUMS[vector * width + lane] = T.float32(0)
            for turn in T.serial(count // side):
                for k in T.unroll(side):
                    for vector in T.serial(lanes // width):
                        for lane in T.vectorized(width):
                            SUMS[k * lanes + vector * width + lane] = SUMS[k * lanes + vector * width + lane] + term(
                                X[at(task, begin + turn * side + k, vector * width + lane)], vector * width + lane
                            )
            for turn in T.serial(count % side):
                for vector in T.serial(lanes // width):
                    for lane in T.vectorized(width):
                        SUMS[vector * width + lane] = SUMS[vector * width + lane] + term(
                            X[at(task, begin + count // side * side + turn, vector * width + lane)],
                            vector * width + lane,
                        )
            for k in T.unroll(side - 1):
                for vector in T.serial(lanes // width):
                    for lane in T.vectorized(width):
                        SUMS[vector * width + lane] = (
                            SUMS[vector * width + lane] + SUMS[(k + 1) * lanes + vector * width + lane]
                        )

        @script.inline
        def gather(X, task, SUMS, OWN, MEAN, SQUARES):  # type: ignore[no-untyped-def]
            for vector in T.serial(lanes // width):
                for lane in T.vectorized(width):
                    MEAN[vector * width + lane] = T.float32(0)
                    SQUARES[vector * width + lane] = T.float32(0)
            for block in T.serial(tirx.floordiv(steps + (piece - 1), piece)):
                sums(X, task, block * piece, tirx.min(piece, steps - block * piece), SUMS, lambda value, lane: value)
                for vector in T.serial(lanes // width):
                    for lane in T.vectorized(width):
                        OWN[vector * width + lane] = SUMS[vector * width + lane] / T.Cast(KIND, many(block))
                sums(
                    X, task, block * piece, tirx.min(piece, steps - block * piece), SUMS,
                    lambda value, lane: (value - OWN[lane]) * (value - OWN[lane]),
                )  # fmt: skip
                for vector in T.serial(lanes // width):
                    for lane in T.vectorized(width):
                        OWN[vector * width + lane] = OWN[vector * width + lane] - MEAN[vector * width + lane]
                        SQUARES[vector * width + lane] = (
                            SQUARES[vector * width + lane]
                            + SUMS[vector * width + lane]
                            + OWN[vector * width + lane]
                            * OWN[vector * width + lane]
                            * T.Cast(KIND, block * piece)
                            * share(block)
                        )
                        MEAN[vector * width + lane] = MEAN[vector * width + lane] + OWN[vector * width + lane] * share(
                            block
                        )

        return gather


def blocked_moments(image: Extents, vector: int, channels: int, epsilon: float | None, *, is_parallel: bool) -> Any:
    """Return ``(image) -> (mean, x)``, x 1 / sqrt(variance + epsilon), or the variance where ``epsilon`` is None.

    ``image`` is (N, blocks, H, W, lanes), results are (N, blocks, 1, 1, lanes). Channels that are none get zeros.
    """
    (shape,) = own(image)
    batch, blocks, height, width, lanes = shape[0], int(shape[1]), shape[2], shape[3], int(shape[4])
    run = _Run(
        steps=height * width, lanes=lanes, width=_width(vector, lanes),
        at=lambda task, step, lane: (task // blocks, task % blocks, *unravelled(step, (height, width)), lane),
    )  # fmt: skip
    gather, loop = run.gathering(), T.parallel if is_parallel else T.serial

    def second(squares: Any, block: Any, lane: Any) -> Any:
        variance = squares / tirx.Cast(KIND, height * width)
        if epsilon is None:
            return variance
        inverse = _inverse(variance, epsilon)
        if channels == blocks * lanes:
            return inverse
        return tirx.if_then_else(block * lanes + lane < channels, inverse, tirx.const(0, KIND))

    @script.prim_func(s_tir=True, private=True)
    def moments(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes(NAME))
        X = T.match_buffer(a, shape, KIND)
        M = T.match_buffer(b, (batch, blocks, 1, 1, lanes), KIND)
        S = T.match_buffer(c, (batch, blocks, 1, 1, lanes), KIND)
        for task in loop(batch * blocks):
            with T.sblock("block"):
                t = T.axis.opaque(batch * blocks, task)
                T.reads()
                T.writes()
                sums = T.sblock_alloc_buffer((run.side * lanes,), KIND, scope="local")
                parts = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                mean = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                squares = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                gather(X, t, sums, parts, mean, squares)
                for lane in T.serial(lanes):
                    M[t // blocks, t % blocks, 0, 0, lane] = mean[lane]
                    S[t // blocks, t % blocks, 0, 0, lane] = second(squares[lane], t % blocks, lane)

    return moments


def group_moments(table: Extents, channels: int, groups: int, epsilon: float) -> Any:
    """Return ``(mean, variance) -> (mean, 1 / sqrt(variance + epsilon))``, of channels, and of the group of each.

    All are (N, blocks, 1, 1, lanes); channels that are none get zeros.
    """
    (shape,) = own(table)
    batch, blocks, lanes, of = shape[0], int(shape[1]), int(shape[4]), channels // groups

    def at(n: Any, channel: Any) -> tuple[Any, ...]:
        return n, channel // lanes, 0, 0, channel % lanes

    @script.prim_func(s_tir=True, private=True)
    def spread(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("group_moments"))
        M = T.match_buffer(a, shape, KIND)
        V = T.match_buffer(b, shape, KIND)
        GM = T.match_buffer(c, shape, KIND)
        GI = T.match_buffer(d, shape, KIND)
        for row in T.serial(batch):
            with T.sblock("row"):
                n = T.axis.opaque(batch, row)
                T.reads()
                T.writes()
                mean = T.sblock_alloc_buffer((1,), KIND, scope="local")
                variance = T.sblock_alloc_buffer((1,), KIND, scope="local")
                for group in T.serial(groups):
                    mean[0] = T.float32(0)
                    for k in T.serial(of):
                        mean[0] = mean[0] + M[at(n, group * of + k)]
                    mean[0] = mean[0] / T.float32(of)
                    variance[0] = T.float32(0)
                    for k in T.serial(of):
                        variance[0] = (
                            variance[0]
                            + V[at(n, group * of + k)]
                            + (M[at(n, group * of + k)] - mean[0]) * (M[at(n, group * of + k)] - mean[0])
                        )
                    variance[0] = _inverse(variance[0] / T.float32(of), epsilon)
                    for k in T.serial(of):
                        GM[at(n, group * of + k)] = mean[0]
                        GI[at(n, group * of + k)] = variance[0]
                for k in T.serial(blocks * lanes - channels):
                    GM[at(n, channels + k)] = T.float32(0)
                    GI[at(n, channels + k)] = T.float32(0)

    return spread


@made_once
def plain_moments(
    tensor: Extents, kept: int, of: int, vector: int, epsilon: float, *, is_parallel: bool
) -> tirx.PrimFunc:
    """Return ``(tensor) -> (mean, 1 / sqrt(variance + epsilon))``, with the first ``kept`` axes and ones.

    ``of`` neighbours along the kept axes have their moments in common. Lanes take every so many numbers, and are put
    together.
    """
    (shape,) = own(tensor)
    results, ones = shape[:kept], (1,) * (len(shape) - kept)
    length, tasks = of * size(shape[kept:]), size(results) // of
    run = _Run(
        steps=length // vector, lanes=vector, width=vector,
        at=lambda task, step, lane: unravelled(task * length + step * vector + lane, shape),
    )  # fmt: skip
    gather, loop = run.gathering(), T.parallel if is_parallel else T.serial
    zeros = (0,) * len(ones)

    def flat(task: Any, place: Any) -> tuple[Any, ...]:
        return unravelled(task * length + place, shape)

    def added(left: Any, right: Any) -> Any:
        return left + right

    @script.prim_func(s_tir=True, private=True)
    def moments(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes(NAME))
        X = T.match_buffer(a, shape, KIND)
        M = T.match_buffer(b, (*results, *ones), KIND)
        S = T.match_buffer(c, (*results, *ones), KIND)
        for task in loop(tasks):
            with T.sblock("group"):
                t = T.axis.opaque(tasks, task)
                T.reads()
                T.writes()
                sums = T.sblock_alloc_buffer((run.side * vector,), KIND, scope="local")
                parts = T.sblock_alloc_buffer((vector,), KIND, scope="local")
                mean = T.sblock_alloc_buffer((vector,), KIND, scope="local")
                squares = T.sblock_alloc_buffer((vector,), KIND, scope="local")
                total = T.sblock_alloc_buffer((1,), KIND, scope="local")
                second = T.sblock_alloc_buffer((1,), KIND, scope="local")
                away = T.sblock_alloc_buffer((1,), KIND, scope="local")
                gather(X, t, sums, parts, mean, squares)
                total[0] = script.over_lanes(mean, vector, added) / T.float32(vector)
                for lane in T.vectorized(vector):
                    parts[lane] = (mean[lane] - total[0]) * (mean[lane] - total[0])
                second[0] = script.over_lanes(squares, vector, added) + script.over_lanes(
                    parts, vector, added
                ) * T.Cast(KIND, length // vector)
                for i in T.serial(length % vector):
                    away[0] = X[flat(t, length // vector * vector + i)] - total[0]
                    total[0] = total[0] + away[0] / T.Cast(KIND, length // vector * vector + i + 1)
                    second[0] = second[0] + away[0] * (X[flat(t, length // vector * vector + i)] - total[0])
                second[0] = _inverse(second[0] / T.Cast(KIND, length), epsilon)
                for k in T.serial(of):
                    M[(*unravelled(t * of + k, results), *zeros)] = total[0]
                    S[(*unravelled(t * of + k, results), *zeros)] = second[0]

    return moments


def _inverse(variance: Any, epsilon: float) -> Any:
    return tirx.const(1, KIND) / tirx.sqrt(variance + tirx.const(epsilon, KIND))


def _width(vector: int, lanes: int) -> int:
    """Return how many of ``lanes`` side by side make a vector of at most ``vector``."""
    return next(width for width in (vector, 4, 2, 1) if width <= vector and lanes % width == 0)
