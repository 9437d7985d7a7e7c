"""A copy of a tensor with elements or slices replaced, or joined with others: ScatterElements and ScatterND.

Updates of one place take effect in the order in which they are given, so that the result is the same on every machine.
A place outside of the tensor is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import (
    Extents,
    Rows,
    attributes,
    called,
    extents_of,
    made_once,
    own,
    size,
    unravelled,
)
from forge_pipeline.codegen.tir import script

BESIDE = 64
"""Rows side by side that are scattered together: what is read of them is neighbours in memory."""


def _largest(old: Any, new: Any) -> Any:
    return tirx.max(old, new)


def _smallest(old: Any, new: Any) -> Any:
    return tirx.min(old, new)


REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": _largest,
    "min": _smallest,
}
"""ONNX's attribute ``reduction``: how an update joins what is there."""


def _from_start(place: Any, extent: Any) -> Any:
    """Return a place in int64, where one below zero counts from the end."""
    place = place.astype("int64")
    return tirx.Select(place < 0, place + extent, place)


def _is_inside(index: Sequence[Any], extents: Extents) -> Any:
    sides = [side for place, extent in zip(index, extents, strict=True) for side in (place >= 0, place < extent)]
    return tirx.all(*sides) if sides else tirx.const(True, "bool")


def _copy(shape: tuple[Any, ...]) -> Any:
    @script.inline
    def copy(A, B):  # type: ignore[no-untyped-def]
        for place in T.parallel(size(shape)):
            with T.sblock("copy"):
                i = T.axis.opaque(size(shape), place)
                T.reads()
                T.writes()
                B[unravelled(i, shape)] = A[unravelled(i, shape)]

    return copy


@made_once
def elements_kernel(
    data: Extents, places: Extents, updates: Extents, axis: int, dtype: str, place_dtype: str, reduction: str
) -> tirx.PrimFunc:
    """Return ``(data, places, updates) -> (result)``; ``places`` have one number for each update, or one for all that
    lie side by side along ``axis``."""
    shape, place_shape, update_shape = own(data, places, updates)
    rows, join = Rows(update_shape, axis), REDUCTIONS[reduction]
    count = (rows.inner + (BESIDE - 1)) // BESIDE
    is_shared = len(places) > 1 and _is_along(places, axis)

    def start(P: Any, o: Any, i: Any, j: Any) -> Any:
        index = Rows(place_shape, axis).at(0, i, 0) if is_shared else rows.at(o, i, j)
        return _from_start(P[index], shape[axis])

    @script.prim_func(s_tir=True, private=True)
    def scatter_elements(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("scatter_elements"))
        A = T.match_buffer(a, shape, dtype)
        P = T.match_buffer(b, place_shape, place_dtype)
        U = T.match_buffer(c, update_shape, dtype)
        B = T.match_buffer(d, shape, dtype)
        _copy(shape)(A, B)
        for group in T.parallel(rows.outer * count):
            with T.sblock("rows"):
                o = T.axis.opaque(rows.outer, group // T.max(count, T.int64(1)))
                first = T.axis.opaque(rows.inner, group % T.max(count, T.int64(1)) * BESIDE)
                T.reads()
                T.writes()
                place = T.sblock_alloc_buffer((1,), "int64", scope="local")
                for i in T.serial(rows.length):
                    if is_shared:
                        place[0] = start(P, o, i, first)
                        if _is_inside([place[0]], [shape[axis]]):
                            for j in T.serial(T.min(T.int64(BESIDE), rows.inner - first)):
                                B[rows.at(o, place[0], first + j)] = join(
                                    B[rows.at(o, place[0], first + j)], U[rows.at(o, i, first + j)]
                                )
                    else:
                        for j in T.serial(T.min(T.int64(BESIDE), rows.inner - first)):
                            place[0] = start(P, o, i, first + j)
                            if _is_inside([place[0]], [shape[axis]]):
                                B[rows.at(o, place[0], first + j)] = join(
                                    B[rows.at(o, place[0], first + j)], U[rows.at(o, i, first + j)]
                                )

    return scatter_elements


def _is_along(extents: Extents, axis: int) -> bool:
    """Return whether a tensor has one element along every other axis."""
    others = [extent for at, extent in enumerate(extents) if at != axis]
    return all(isinstance(extent, int | tirx.IntImm) and int(extent) == 1 for extent in others)


def scatter_elements(
    builder: Any, value: relax.Expr, places: relax.Expr, updates: relax.Expr, *, axis: int, reduction: str = "none"
) -> relax.Expr:
    """Return ``value`` with ``updates`` at ``places`` along ``axis``: ONNX's ScatterElements."""
    shape, dtype, extents = extents_of(value), str(value.ty.dtype), extents_of(places)
    axis %= len(shape)
    places = _before_expansion(builder, places, axis)
    kernel = elements_kernel(shape, extents_of(places), extents, axis, dtype, str(places.ty.dtype), reduction)
    (result,) = called(builder, kernel, [value, places, updates], [(shape, dtype)])
    return result


def _before_expansion(builder: Any, places: relax.Expr, axis: int) -> relax.Expr:
    """Return what ``places`` repeat along all axes but ``axis``, as exporters write rows that are scattered; itself
    where it repeats nothing."""
    call = builder.lookup_binding(places) if isinstance(places, relax.Var) else places
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.broadcast_to":
        return places
    extents, repeated = extents_of(call.args[0]), extents_of(places)
    is_whole = len(extents) == len(repeated) and tvm_ffi.structural_equal(extents[axis], repeated[axis])
    return call.args[0] if is_whole and _is_along(extents, axis) else places


@made_once
def slices_kernel(
    data: Extents, places: Extents, depth: int, dtype: str, place_dtype: str, reduction: str
) -> tirx.PrimFunc:
    """Return ``(data, places (..., depth), updates (..., data's last extents)) -> (result)``."""
    shape, place_shape = own(data, places)
    tuples, inner, join = place_shape[:-1], shape[depth:], REDUCTIONS[reduction]

    def start(P: Any, i: Any) -> tuple[Any, ...]:
        """Return where the slice of one update lies."""
        return tuple(_from_start(P[(*unravelled(i, tuples), k)], shape[k]) for k in range(depth))

    @script.prim_func(s_tir=True, private=True)
    def scatter_slices(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("scatter_nd"))
        A = T.match_buffer(a, shape, dtype)
        P = T.match_buffer(b, place_shape, place_dtype)
        U = T.match_buffer(c, (*tuples, *inner), dtype)
        B = T.match_buffer(d, shape, dtype)
        _copy(shape)(A, B)
        with T.sblock("updates"):
            T.reads()
            T.writes()
            for i in T.serial(size(tuples)):
                if _is_inside(start(P, i), shape[:depth]):
                    for j in T.serial(size(inner)):
                        B[(*start(P, i), *unravelled(j, inner))] = join(
                            B[(*start(P, i), *unravelled(j, inner))], U[(*unravelled(i, tuples), *unravelled(j, inner))]
                        )

    return scatter_slices


def scatter_nd(
    builder: Any, value: relax.Expr, places: relax.Expr, updates: relax.Expr, *, depth: int, reduction: str = "none"
) -> relax.Expr:
    """Return ``value`` with the slices at ``places`` (..., depth) replaced: ONNX's ScatterND."""
    shape, dtype = extents_of(value), str(value.ty.dtype)
    kernel = slices_kernel(shape, extents_of(places), depth, dtype, str(places.ty.dtype), reduction)
    (result,) = called(builder, kernel, [value, places, updates], [(shape, dtype)])
    return result
