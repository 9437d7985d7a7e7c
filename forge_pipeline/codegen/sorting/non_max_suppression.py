"""Boxes that overlap no better box of their class: ONNX's NonMaxSuppression, with its limits as data.

The boxes of a class lie in a heap, best on top: some are taken off at a time, and what is not looked at is not sorted.
Each box kept so far is held against all of them in vectors, and then those that are left against one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.merge_sort import PLACE, place_at
from forge_pipeline.codegen.sorting.order import before, equal
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, extents_of, made_once, own
from forge_pipeline.codegen.tir import script

TOGETHER = 64
"""Boxes that are looked at together, best first."""
LANES = 16
"""Of them in a vector."""
BETWEEN = 16
"""Kept boxes that all of them are held against before it is asked whether one is left."""

MEASURES = 5
"""Of a box: its least and most along both directions, then its area."""


def _measures(box: tuple[Any, ...], *, is_centered: bool) -> tuple[Any, ...]:
    """Return a box's ``MEASURES``."""
    spans = []
    for low, high in (box[::2], box[1::2]):
        if is_centered:
            spans.append((low - high / 2, low + high / 2))
        else:
            spans.append((tirx.min(low, high), tirx.max(low, high)))
    (left, right), (top, bottom) = spans
    return left, right, top, bottom, (right - left) * (bottom - top)


def _overlap_more(first: Sequence[Any], second: Sequence[Any], threshold: Any) -> Any:
    """Return whether two boxes' intersection over union is above a threshold; at the threshold it is not."""
    across, along = (
        tirx.min(first[side + 1], second[side + 1]) - tirx.max(first[side], second[side]) for side in (0, 2)
    )
    zero, shared = tirx.const(0, "float32"), across * along
    union = first[4] + second[4] - shared
    is_real = tirx.all(across > zero, along > zero, first[4] > zero, second[4] > zero, union > zero)
    return tirx.all(is_real, shared / union > threshold)


@made_once
def suppression_kernel(
    boxes: Extents, scores: Extents, limits: tuple[Extents, Extents, Extents], bound: Any, *, is_centered: bool
) -> tirx.PrimFunc:
    """Return ``(boxes, scores, most, overlap, least) -> (selected (bound, 3), count (), kept, scratch)``.

    Boxes are float32 (batch, boxes, 4), scores float32 (batch, classes, boxes); the others have one element: how many
    are kept of a class at most, the overlap that is still allowed, and the score that is too little.
    """
    box_shape, score_shape, most, overlap, least, (places,) = own(boxes, scores, *limits, (bound,))
    rows = Rows(score_shape, 2)
    classes, at = score_shape[1], partial(place_at, rows)

    def only(shape: tuple[Any, ...]) -> tuple[int, ...]:
        return (0,) * len(shape)

    def better(P: Any, S: Any, o: Any, left: Any, right: Any) -> Any:
        """Return whether the box at a place of the heap has a higher score than another, or as high and is first."""
        boxes = [tirx.Cast("int64", S[at(o, 0, 0, place)]) for place in (left, right)]
        first, second = (P[rows.at(o, box, 0)] for box in boxes)
        return tirx.any(before(first, second, descending=True), tirx.all(equal(first, second), boxes[0] < boxes[1]))

    def measured(B: Any, n: Any, chosen: Any, side: int) -> Any:
        return _measures(tuple(B[n, chosen, at] for at in range(4)), is_centered=is_centered)[side]

    def overlap_more(box: Any, boxes: Any, lane: Any, threshold: Any) -> Any:
        first, second = (
            [held[(at, *place)] for at in range(MEASURES)] for held, place in ((box, ()), (boxes, (lane,)))
        )
        return _overlap_more(first, second, threshold)

    @script.prim_func(s_tir=True, private=True)
    def suppress(  # type: ignore[no-untyped-def]
        a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle, f: T.handle, g: T.handle, h: T.handle,
        i: T.handle,
    ):  # fmt: skip
        T.func_attr(attributes("non_max_suppression"))
        B = T.match_buffer(a, box_shape, "float32")
        P = T.match_buffer(b, score_shape, "float32")
        M = T.match_buffer(c, most, "int64")
        O = T.match_buffer(d, overlap, "float32")  # noqa: E741
        L = T.match_buffer(e, least, "float32")
        R = T.match_buffer(f, (places, 3), "int64")
        C = T.match_buffer(g, (), "int64")
        K = T.match_buffer(h, score_shape[:2], "int64")
        S = T.match_buffer(i, (*score_shape[:2], 2, score_shape[2]), PLACE)

        @script.inline
        def sink(o, count, node, child, held):  # type: ignore[no-untyped-def]
            """Let a box go down in the heap of ``count`` boxes until no better one is below it."""
            child[0] = 2 * node[0] + 1
            while child[0] < count:
                if T.if_then_else(child[0] + 1 < count, better(P, S, o, child[0] + 1, child[0]), False):
                    child[0] = child[0] + 1
                if better(P, S, o, child[0], node[0]):
                    held[0] = S[at(o, 0, 0, node[0])]
                    S[at(o, 0, 0, node[0])] = S[at(o, 0, 0, child[0])]
                    S[at(o, 0, 0, child[0])] = held[0]
                    node[0] = child[0]
                    child[0] = 2 * child[0] + 1
                else:
                    child[0] = count

        @script.inline
        def look_at(box, n, chosen):  # type: ignore[no-untyped-def]
            """Remember a box's sides and area."""
            box[0] = measured(B, n, chosen, 0)
            box[1] = measured(B, n, chosen, 1)
            box[2] = measured(B, n, chosen, 2)
            box[3] = measured(B, n, chosen, 3)
            box[4] = measured(B, n, chosen, 4)

        @script.inline
        def suppress_by(box, boxes, dead):  # type: ignore[no-untyped-def]
            """Mark those of the boxes looked at that overlap one."""
            for part in T.serial(TOGETHER // LANES):
                for lane in T.vectorized(LANES):
                    dead[part * LANES + lane] = T.Select(
                        overlap_more(box, boxes, part * LANES + lane, O[only(overlap)]),
                        T.int32(1),
                        dead[part * LANES + lane],
                    )

        for row in T.parallel(rows.outer):
            with T.sblock("class"):
                o = T.axis.opaque(rows.outer, row)
                T.reads()
                T.writes()
                found = T.sblock_alloc_buffer((1,), "int64", scope="local")
                kept = T.sblock_alloc_buffer((1,), "int64", scope="local")
                seen = T.sblock_alloc_buffer((1,), "int64", scope="local")
                node = T.sblock_alloc_buffer((1,), "int64", scope="local")
                child = T.sblock_alloc_buffer((1,), "int64", scope="local")
                held = T.sblock_alloc_buffer((1,), PLACE, scope="local")
                taken = T.sblock_alloc_buffer((1,), "int64", scope="local")
                left = T.sblock_alloc_buffer((1,), "int32", scope="local")
                box = T.sblock_alloc_buffer((MEASURES,), "float32", scope="local")
                boxes = T.sblock_alloc_buffer((MEASURES, TOGETHER), "float32", scope="local")
                looked = T.sblock_alloc_buffer((TOGETHER,), PLACE, scope="local")
                dead = T.sblock_alloc_buffer((TOGETHER,), "int32", scope="local")
                found[0] = T.int64(0)
                for place in T.serial(rows.length):
                    if P[rows.at(o, place, 0)] > L[only(least)]:
                        S[at(o, 0, 0, found[0])] = T.Cast(PLACE, place)
                        found[0] = found[0] + 1
                for step in T.serial(found[0] // 2):
                    node[0] = found[0] // 2 - 1 - step
                    sink(o, found[0], node, child, held)
                kept[0] = T.int64(0)
                while T.if_then_else(kept[0] < M[only(most)], found[0], T.int64(0)) > 0:
                    taken[0] = T.min(found[0], T.int64(TOGETHER))
                    for lane in T.serial(T.int64(TOGETHER)):
                        if lane < taken[0]:
                            looked[lane] = S[at(o, 0, 0, T.int64(0))]
                            look_at(box, o // classes, T.Cast("int64", looked[lane]))
                            found[0] = found[0] - 1
                            S[at(o, 0, 0, T.int64(0))] = S[at(o, 0, 0, found[0])]
                            node[0] = T.int64(0)
                            sink(o, found[0], node, child, held)
                        dead[lane] = T.if_then_else(lane < taken[0], T.int32(0), T.int32(1))
                        for measure in T.serial(MEASURES):
                            boxes[measure, lane] = box[measure]
                    left[0] = T.int32(1)
                    seen[0] = T.int64(0)
                    while seen[0] < T.if_then_else(left[0] > 0, kept[0], T.int64(0)):
                        for step in T.serial(T.min(kept[0] - seen[0], T.int64(BETWEEN))):
                            look_at(box, o // classes, T.Cast("int64", S[at(o, 0, 1, seen[0] + step)]))
                            suppress_by(box, boxes, dead)
                        seen[0] = seen[0] + BETWEEN
                        left[0] = T.int32(0)
                        for lane in T.serial(T.int64(TOGETHER)):
                            left[0] = left[0] + 1 - dead[lane]
                    for lane in T.serial(taken[0]):
                        if T.if_then_else(dead[lane] == 0, kept[0] < M[only(most)], False):
                            S[at(o, 0, 1, kept[0])] = looked[lane]
                            kept[0] = kept[0] + 1
                            look_at(box, o // classes, T.Cast("int64", looked[lane]))
                            suppress_by(box, boxes, dead)
                K[o // classes, o % classes] = kept[0]
        with T.sblock("result"):
            T.reads()
            T.writes()
            filled = T.sblock_alloc_buffer((1,), "int64", scope="local")
            filled[0] = T.int64(0)
            for o in T.serial(rows.outer):
                for place in T.serial(K[o // classes, o % classes]):
                    R[filled[0], 0] = T.Cast("int64", o // classes)
                    R[filled[0], 1] = T.Cast("int64", o % classes)
                    R[filled[0], 2] = T.Cast("int64", S[at(o, 0, 1, place)])
                    filled[0] = filled[0] + 1
            C[()] = filled[0]

    return suppress


def non_max_suppression(
    builder: Any,
    boxes: relax.Expr,
    scores: relax.Expr,
    limits: tuple[relax.Expr, relax.Expr, relax.Expr],
    bound: Any,
    *,
    is_centered: bool,
) -> tuple[relax.Expr, relax.Expr]:
    """Return the (batch, class, box) of each box that is kept, (``bound``, 3), and how many there are, ().

    They are in order of batch and class, then best first. ``limits`` are one element each: how many of a class are
    kept (int64), the overlap that is allowed, and the score to exceed (float32; -inf for any). ``bound`` is an extent
    that the number kept cannot exceed. ``is_centered``: boxes are (x, y, width, height) about their centre, else two
    corners.
    """
    shapes = (extents_of(limits[0]), extents_of(limits[1]), extents_of(limits[2]))
    score_shape = extents_of(scores)
    kernel = suppression_kernel(extents_of(boxes), score_shape, shapes, bound, is_centered=is_centered)
    results: list[tuple[Extents, str]] = [
        ((bound, 3), "int64"),
        ((), "int64"),
        (score_shape[:2], "int64"),
        ((*score_shape[:2], 2, score_shape[2]), PLACE),
    ]
    selected, count, *_ = called(builder, kernel, [boxes, scores, *limits], results)
    return selected, count
