"""Images of which pixels are mixed linearly along axes of unknown extent: one kernel for rows and columns.

A kernel first makes tables of which pixel each place reads, and how much of the next one. Then it mixes two rows of the
image to one, and that along itself, row after row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import simplify
from forge_pipeline.codegen.float32.nearest import FIRST_PIXEL_AXIS, choice_of
from forge_pipeline.codegen.layout.builder import Graph, Value, dtype_of, shape_of
from forge_pipeline.codegen.layout.symbolic_cast import Renamed
from forge_pipeline.codegen.onnx_import.resize import Choice
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "mix"
IMAGE_RANK = 4
ROWS, COLUMNS = 2, 3
"""Axes that one kernel mixes, in either layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """An image whose pixels are mixed along axes, in their order, not emitted yet: another axis may follow."""

    value: Value
    choices: tuple[Choice, ...]

    @property
    def axes(self) -> list[int]:
        """Those that are mixed."""
        return [choice.position for choice in self.choices]

    def emit(self, graph: Graph) -> Value:
        """Emit it in blocks, where a pixel is a vector, unless the image is plain and has fewer channels."""
        is_blocked = graph.is_blocked(self.value) or self._fills_blocks(graph)
        image = graph.blocked(self.value) if is_blocked else graph.plain(self.value)
        made = graph.kernel(mix, image, name=NAME, choices=self.choices)
        return Value(blocked=made, channels=self.value.channels) if is_blocked else Value(plain=made)

    def _fills_blocks(self, graph: Graph) -> bool:
        shape = shape_of(graph.plain(self.value))
        is_image = len(shape) == IMAGE_RANK and isinstance(shape[1], int)
        return is_image and not graph.channels_last and shape[1] >= graph.machine.lanes


def mix(image: te.Tensor, choices: tuple[Choice, ...]) -> te.Tensor:
    """Describe an image that is mixed along an axis, then along the next.

    ``out[.., o, ..] = image[.., p[o], ..] (1 - s[o]) + image[.., p[o] + 1, ..] s[o]``
    """
    for turn, choice in enumerate(choices):
        notes = {primitives.FAMILY: NAME} if turn == len(choices) - 1 else {}
        image = _along(image, choice, notes)
    return image


def _along(image: te.Tensor, choice: Choice, notes: dict[str, str]) -> te.Tensor:
    axis, size = choice.position, image.shape[choice.position]
    output = simplify(choice.axis(size).output)
    place = te.compute((output,), lambda at: tirx.Cast("int32", choice.between(at, size)[0]), name=f"place{axis}")
    share = te.compute((output,), lambda at: choice.between(at, size)[1], name=f"share{axis}")

    def element(*at: Any) -> Any:
        index, part = at[axis], share(at[axis])
        first = place(index)
        near, far = (image(*at[:axis], _within(first + step, size), *at[axis + 1 :]) for step in (0, 1))
        return near * (tirx.const(1.0, "float32") - part) + far * part

    shape = (*image.shape[:axis], output, *image.shape[axis + 1 :])
    return te.compute(shape, element, name=f"{NAME}{axis}", attrs=notes)


def _within(place: Any, size: Any) -> Any:
    """Return a pixel that there is, of which TVM sees that: so it finds what rows a result needs."""
    last = tirx.Cast("int32", size - 1)
    return tirx.max(tirx.min(place, last), tirx.const(0, "int32"))


def mix_open(graph: Graph, call: relax.Call) -> Value | None:
    """Mix pixels along an axis of unknown extent; columns with the rows that were mixed before."""
    found = choice_of(graph, call)
    if found is None or found[1].rule.mode != "linear" or dtype_of(call) != "float32":
        return None
    source, choice = found
    value = graph.look(source)
    deferred = value.deferred.inner if isinstance(value.deferred, Renamed) else value.deferred
    if choice.position < FIRST_PIXEL_AXIS:
        return None
    is_next = choice.position == COLUMNS and graph.is_used_once(source)
    if is_next and isinstance(deferred, Mixed) and deferred.axes == [ROWS]:
        made = Mixed(value=deferred.value, choices=(*deferred.choices, choice))
        return Value(deferred=made, channels=value.channels)
    return Value(deferred=Mixed(value=graph.materialize(value), choices=(choice,)), channels=value.channels)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Mix row by row, of vectors where pixels are; the tables are LLVM's to make."""
    anchor = primitives.find(sch, NAME)
    is_vector = primitives.extents(sch, anchor)[-1] == machine.lanes
    work = primitives.work_of(primitives.extents(sch, anchor))
    rows = [
        block
        for block in primitives.blocks(sch)
        if sch.get(block).name_hint == f"{NAME}{ROWS}" != sch.get(anchor).name_hint
    ]
    loops = sch.get_loops(anchor)
    if is_vector:
        sch.vectorize(loops[-1])
    for block in rows:
        sch.compute_at(block, loops[ROWS])
        if is_vector:
            sch.vectorize(sch.get_loops(block)[-1])
    primitives.parallel_outside(sch, loops[: COLUMNS if rows else len(loops) - 1 - is_vector], machine, work)


HANDLERS = {"relax.call_tir": mix_open}
