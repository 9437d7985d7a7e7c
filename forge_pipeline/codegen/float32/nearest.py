"""Images of which pixels are chosen: one kernel for all axes, in either layout.

Where each pixel is there equally often, as in an image that is doubled, a loop reads it once, and stores it side by
side and below. In open sizes, results have an axis more for the times, which is the same memory. Otherwise places are
in tables, one for each axis; where extents are open, the kernel makes these before it chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, s_tir, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.float32.conv.geometry import simplify
from forge_pipeline.codegen.layout.builder import Array, Extent, Graph, Value, ints, shape_of
from forge_pipeline.codegen.layout.symbolic_cast import Renamed
from forge_pipeline.codegen.onnx_import.resize import CHOICE, Choice
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "nearest"
SPREAD = "spread"
TIMES = "forge.times"
"""The annotation of a block that stores pixels several times: how often along each axis, less than 0 where the axis is
that of the times."""

FIRST_PIXEL_AXIS = 2
"""In either layout; what is before counts images, and channels."""

SIDE_BY_SIDE = 4
"""Times up to which LLVM puts vectors together of what a loop stores side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Which pixels there are along an axis: each ``times`` times, or those of a ``table``, or as a ``choice`` says."""

    axis: int
    times: int | None
    table: Array | None = None
    choice: Choice | None = None

    @classmethod
    def of_table(cls, axis: int, table: Array, size: Extent) -> Pick:
        """Return that of places that are known, among ``size``."""
        return cls(axis=axis, times=_times(table, size), table=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An image of which pixels are chosen, not emitted yet: another axis may follow."""

    value: Value
    picks: tuple[Pick, ...]

    def lacks(self, axis: int) -> bool:
        """Return whether all pixels along an axis are there as they were."""
        return all(pick.axis != axis for pick in self.picks)

    def emit(self, graph: Graph) -> Value:
        """Emit it, in the form that the image has."""
        is_blocked = graph.is_blocked(self.value)
        image = self.value.blocked if is_blocked else graph.plain(self.value)
        times = {pick.axis: pick.times for pick in self.picks if pick.times is not None}
        if len(times) == len(self.picks):
            extents = shape_of(image)
            is_known = all(isinstance(extents[axis], int) for axis in times)
            made = graph.kernel(spread if is_known else spread_open, image, name=SPREAD, times=times)
            if not is_known:
                whole = [extent * times.get(axis, 1) for axis, extent in enumerate(extents)]
                made = graph.emit(relax.op.reshape(made, whole))
        else:
            tables = [graph.constant(pick.table.astype(np.int32)) for pick in self.picks if pick.table is not None]
            made = graph.kernel(choose, image, *tables, name=NAME, picks=self.picks)
        return Value(blocked=made, channels=self.value.channels) if is_blocked else Value(plain=made)


def spread(image: te.Tensor, times: dict[int, int]) -> te.Tensor:
    """Describe ``out[.., o, ..] = image[.., o // times, ..]`` along the axes in ``times``."""
    shape = [extent * times.get(axis, 1) for axis, extent in enumerate(image.shape)]
    notes = {primitives.FAMILY: SPREAD, TIMES: [times.get(axis, 1) for axis in range(len(shape))]}

    def element(*at: Any) -> Any:
        return image(*(index // times[axis] if axis in times else index for axis, index in enumerate(at)))

    return te.compute(shape, element, name=SPREAD, attrs=notes)


def spread_open(image: te.Tensor, times: dict[int, int]) -> te.Tensor:
    """Describe ``out[.., o, r, ..] = image[.., o, ..]``, with an axis for the times behind each in ``times``."""
    shape, own, counts = list[Any](), list[int](), list[int]()
    for axis, extent in enumerate(image.shape):
        own.append(len(shape))
        shape += [extent, times[axis]] if axis in times else [extent]
        counts += [1, -times[axis]] if axis in times else [1]
    return copied(image, shape, own, counts)


def copied(tensor: te.Tensor, shape: Sequence[Any], own: Sequence[int], counts: Sequence[int]) -> te.Tensor:
    """Describe copies of a tensor, whose axes are ``own`` of the result's; ``counts`` are what ``TIMES`` says."""
    notes = {primitives.FAMILY: SPREAD, TIMES: list(counts)}
    return te.compute(shape, lambda *at: tensor(*(at[place] for place in own)), name=SPREAD, attrs=notes)


def choose(image: te.Tensor, *tables: te.Tensor, picks: Sequence[Pick]) -> te.Tensor:
    """Describe ``out[.., o, ..] = image[.., place[o], ..]`` along some axes; ``tables`` are those that are known."""
    known, places, shape = iter(tables), dict[int, te.Tensor](), list(image.shape)
    for pick in picks:
        table = next(known) if pick.choice is None else _places(pick.choice, image.shape[pick.axis])
        places[pick.axis], shape[pick.axis] = table, table.shape[0]

    def element(*at: Any) -> Any:
        return image(*(places[axis](index) if axis in places else index for axis, index in enumerate(at)))

    return te.compute(shape, element, name=NAME, attrs={primitives.FAMILY: NAME})


def _places(choice: Choice, size: Any) -> te.Tensor:
    """Describe the table of an axis of unknown extent."""
    output = simplify(choice.axis(size).output)
    return te.compute((output,), lambda at: tirx.Cast("int32", choice.pixel(at, size)), name=f"places{choice.position}")


def chosen(graph: Graph, source: relax.Expr, value: Value, pick: Pick) -> Value:
    """Return ``value``, which ``source`` names, with one axis more of which pixels are chosen."""
    deferred = value.deferred.inner if isinstance(value.deferred, Renamed) else value.deferred
    if pick.axis < FIRST_PIXEL_AXIS:
        return Value(deferred=Chosen(value=Value(plain=graph.plain(value)), picks=(pick,)))
    if isinstance(deferred, Chosen) and graph.is_used_once(source) and deferred.lacks(pick.axis):
        return Value(deferred=replace(deferred, picks=(*deferred.picks, pick)), channels=value.channels)
    return Value(deferred=Chosen(value=graph.materialize(value), picks=(pick,)), channels=value.channels)


def choice_of(graph: Graph, call: relax.Call) -> tuple[relax.Expr, Choice] | None:
    """Return an image, and how its pixels are chosen or mixed along an open axis; None for other kernels."""
    if not isinstance(call.args[1], relax.Tuple) or not call.args[1].fields:
        return None
    sch = s_tir.Schedule(graph.builder.get()[call.args[0]])
    notes = [sch.get(block).annotations.get(CHOICE) for block in primitives.blocks(sch)]
    if len(notes) != 1 or notes[0] is None:
        return None
    return call.args[1].fields[0], Choice.of(str(notes[0]), shape_of(call))  # extents may follow: those of the image


def choose_open(graph: Graph, call: relax.Call) -> Value | None:
    """Choose pixels along an axis of unknown extent."""
    found = choice_of(graph, call)
    if found is None or found[1].rule.mode != "nearest":
        return None
    image, choice = found
    return chosen(graph, image, graph.look(image), pick_of(choice))


def pick_of(choice: Choice) -> Pick:
    """Return the pick of a choice of the nearest pixels."""
    return Pick(axis=choice.position, times=choice.times(), choice=choice)


def choose_known(graph: Graph, call: relax.Call) -> Value | None:
    """Choose rows or columns, and the like."""
    return take_pixels(graph, graph.look(call.args[0]), call)


def take_pixels(graph: Graph, value: Value, call: relax.Call) -> Value | None:
    """Choose rows or columns of ``value``, an image, in place of what ``call`` takes them from.

    In blocks, where each is there equally often, this becomes part of the kernel that reads the result.
    """
    table = graph.look(call.args[1]).constant
    if table is None or table.ndim != 1 or call.attrs.axis is None:
        return None
    axis = ints([call.attrs.axis])[0] % len(shape_of(call))
    if axis < FIRST_PIXEL_AXIS:
        return None
    size = shape_of(call.args[0])[axis]
    if not isinstance(size, int) or not len(table) or table.min() < 0 or table.max() >= size:
        return None
    pick = Pick.of_table(axis, table, size)
    if value.deferred is None and value.blocked is not None:
        if pick.times is None:
            taken = graph.emit(relax.Call(call.op, [value.blocked, graph.plain(graph.look(call.args[1]))], call.attrs))
        else:
            taken = graph.kernel(_repeat, value.blocked, name="repeat", axis=axis, times=pick.times)
        return Value(blocked=taken, channels=value.channels)
    return chosen(graph, call.args[0], value, pick)


def _times(table: Array, size: Extent) -> int | None:
    """Return how often each of ``size`` rows or columns is there, if all are equally often, in order."""
    if not isinstance(size, int) or len(table) % size:
        return None
    times = len(table) // size
    return times if np.array_equal(table, np.arange(len(table)) // times) else None


def _repeat(image: te.Tensor, axis: int, times: int) -> te.Tensor:
    shape = (*image.shape[:axis], image.shape[axis] * times, *image.shape[axis + 1 :])
    return te.compute(shape, lambda *at: image(*at[:axis], at[axis] // times, *at[axis + 1 :]), name="repeat")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Choose row by row; the tables are LLVM's to make."""
    block = primitives.find(sch, NAME)
    loops = sch.get_loops(block)
    extents = primitives.extents(sch, block)
    if extents[-1] == machine.lanes:
        sch.vectorize(loops[-1])
        loops = loops[:-1]
    primitives.parallel_outside(sch, loops[:-1], machine, primitives.work_of(extents))


def schedule_spread(sch: Schedule, machine: Machine) -> None:
    """Store each pixel all its times: where they are few, in the loop that reads it, else in loops of their own."""
    block = primitives.find(sch, SPREAD)
    extents = primitives.extents(sch, block)
    outer, inner = list[LoopRV](), list[LoopRV]()
    for loop, count in zip(sch.get_loops(block), ints(sch.get(block).annotations[TIMES]), strict=True):
        own, times = sch.split(loop, [None, count]) if count > 1 else (loop, loop)
        if count > 0:
            outer.append(own)
        if count != 1:
            (inner if abs(count) <= SIDE_BY_SIDE else outer).append(times)
    vector = [outer.pop()] if primitives.extent(sch, outer[-1]) == machine.lanes and len(outer) > 1 else []
    sch.reorder(*outer, *inner, *vector)
    for loop in vector:
        sch.vectorize(loop)
    for loop in inner:
        sch.unroll(loop)
    primitives.parallel_outside(sch, outer[:-1], machine, primitives.work_of(extents))


HANDLERS = {"relax.call_tir": choose_open, "relax.take": choose_known}
