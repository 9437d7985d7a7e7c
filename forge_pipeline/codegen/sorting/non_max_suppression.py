"""Boxes that overlap no better box of their class: ONNX's NonMaxSuppression, with its limits as data.

The boxes of a class lie in a heap, best on top: as many are taken off as are looked at, and the rest is not sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.merge_sort import PLACE, place_at
from forge_pipeline.codegen.sorting.order import before, equal
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, extents_of, own
from forge_pipeline.codegen.tir import script


@dataclass(frozen=True, slots=True)
class _Span:
    """A side of two boxes along one direction, and what they share of it."""

    first: tuple[Any, Any]
    second: tuple[Any, Any]

    @property
    def shared(self) -> Any:
        return tirx.min(self.first[1], self.second[1]) - tirx.max(self.first[0], self.second[0])

    @property
    def lengths(self) -> tuple[Any, Any]:
        return self.first[1] - self.first[0], self.second[1] - self.second[0]


def _overlap_more(first: tuple[Any, ...], second: tuple[Any, ...], threshold: Any, *, is_centered: bool) -> Any:
    """Return whether two boxes' intersection over union is above a threshold; at the threshold it is not."""

    def side(box: tuple[Any, ...], axis: int) -> tuple[Any, Any]:
        low, high = box[axis], box[axis + 2]
        if is_centered:
            return low - high / 2, low + high / 2
        return tirx.min(low, high), tirx.max(low, high)

    across, along = (_Span(side(first, axis), side(second, axis)) for axis in (0, 1))
    zero = tirx.const(0, "float32")
    shared = across.shared * along.shared
    areas = [a * b for a, b in zip(across.lengths, along.lengths, strict=True)]
    union = areas[0] + areas[1] - shared
    is_real = tirx.all(across.shared > zero, along.shared > zero, areas[0] > zero, areas[1] > zero, union > zero)
    return tirx.all(is_real, shared / union > threshold)


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
        def compare(flag, n, one, other):  # type: ignore[no-untyped-def]
            flag[0] = T.Cast(
                "int32",
                _overlap_more(
                    (B[n, one, 0], B[n, one, 1], B[n, one, 2], B[n, one, 3]),
                    (B[n, other, 0], B[n, other, 1], B[n, other, 2], B[n, other, 3]),
                    O[only(overlap)],
                    is_centered=is_centered,
                ),
            )

        for row in T.parallel(rows.outer):
            with T.sblock("class"):
                o = T.axis.opaque(rows.outer, row)
                T.reads()
                T.writes()
                flag = T.sblock_alloc_buffer((1,), "int32", scope="local")
                found = T.sblock_alloc_buffer((1,), "int64", scope="local")
                kept = T.sblock_alloc_buffer((1,), "int64", scope="local")
                seen = T.sblock_alloc_buffer((1,), "int64", scope="local")
                node = T.sblock_alloc_buffer((1,), "int64", scope="local")
                child = T.sblock_alloc_buffer((1,), "int64", scope="local")
                held = T.sblock_alloc_buffer((1,), PLACE, scope="local")
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
                    flag[0] = T.int32(0)
                    seen[0] = T.int64(0)
                    while seen[0] < T.if_then_else(flag[0] == 0, kept[0], T.int64(0)):
                        compare(
                            flag,
                            o // classes,
                            T.Cast("int64", S[at(o, 0, 0, T.int64(0))]),
                            T.Cast("int64", S[at(o, 0, 1, seen[0])]),
                        )
                        seen[0] = seen[0] + 1
                    if flag[0] == T.int32(0):
                        S[at(o, 0, 1, kept[0])] = S[at(o, 0, 0, T.int64(0))]
                        kept[0] = kept[0] + 1
                    found[0] = found[0] - 1
                    S[at(o, 0, 0, T.int64(0))] = S[at(o, 0, 0, found[0])]
                    node[0] = T.int64(0)
                    sink(o, found[0], node, child, held)
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
