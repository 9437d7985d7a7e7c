"""Resizing bytes by linear interpolation: read as bytes, interpolated in registers, stored as bytes.

Both axes are resized at once, so that nothing lies between them in memory. Dequantization, weights, sums and the
order of all of them are those of ONNX Runtime's bilinear kernel for floats (``UpsampleBilinear``), which has two pixels
of one half each where the last one is read alone: what is stored equals what DequantizeLinear, Resize and
QuantizeLinear store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value, shape_of
from forge_pipeline.codegen.integer import (
    Affine,
    Clip,
    Dequantized,
    clipped_float,
    dequantized,
    quotient,
    rounded,
    stored,
)
from forge_pipeline.codegen.schedules import moves, resample

if TYPE_CHECKING:
    from tvm import relax, te

TAPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An axis: result o is the sum over k of ``weights[o, k] * pixel[first[o] + k]``, for at most two k."""

    axis: int
    first: Array
    weights: Array

    def pixels(self, size: int) -> Array:
        """Return the two pixels (output, 2) that each result reads: the last one twice where it is read alone."""
        alone = self._last_alone(size)
        return np.stack([np.where(alone, size - 1, self.first), np.minimum(self.first + 1, size - 1)], axis=1)

    def shares(self, size: int) -> Array:
        """Return the weights of both."""
        halves = np.full_like(self.weights, 0.5)
        return np.where(self._last_alone(size)[:, None], halves, self.weights).astype(np.float32)

    def _last_alone(self, size: int) -> Array:
        return np.asarray((self.first == size - TAPS) & (self.weights[:, 0] == 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An image of bytes, resized along one or two axes, that waits to be stored: a ``Waiting`` result."""

    value: Dequantized
    lines: tuple[Line, ...]
    clip: Clip

    def emit(self, graph: Graph) -> Value:
        """Emit it in float, an axis at a time."""
        is_blocked = graph.is_blocked(self.value)
        image = self.value.blocked if is_blocked else graph.plain(self.value)
        for line in self.lines:
            tables = [graph.constant(table) for table in (line.first, line.weights)]
            image = graph.kernel(resample.resample, image, *tables, name=resample.NAME, axis=line.axis)
        if self.clip != Clip():
            image = graph.kernel(_limit, image, name="limit", clip=self.clip)
        return Value(blocked=image, channels=self.value.channels) if is_blocked else Value(plain=image)

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""
        source = self.value.source
        is_blocked = graph.is_blocked(source)
        image = source.blocked if is_blocked else graph.plain(source)
        sizes = shape_of(image)
        tables = []
        for line in sorted(self.lines, key=lambda item: item.axis):
            tables += [line.pixels(sizes[line.axis]).astype(np.int32), line.shares(sizes[line.axis])]
        result = graph.kernel(
            interpolate, image, *map(graph.constant, tables),
            name="resize_u8", axes=tuple(sorted(line.axis for line in self.lines)), affine=self.value.affine,
            result=affine, clip=self.clip, fused=graph.machine.fused,
        )  # fmt: skip
        return Value(blocked=result, channels=source.channels) if is_blocked else Value(plain=result)


def _limit(image: te.Tensor, clip: Clip) -> te.Tensor:
    from tvm import te

    return te.compute(image.shape, lambda *at: clipped_float(image(*at), clip), name="limit")


def interpolate(
    image: te.Tensor, *tables: te.Tensor,
    axes: tuple[int, ...], affine: Affine, result: Affine, clip: Clip, fused: bool,
) -> te.Tensor:  # fmt: skip
    """Describe an image resized along ``axes``; for each of them there are a table of pixels and one of weights."""
    from tvm import te, tirx

    scale = tirx.const(affine.scale, "float32")
    lines = dict(zip(axes, zip(tables[::2], tables[1::2], strict=True), strict=True))
    shape = [lines[axis][0].shape[0] if axis in lines else extent for axis, extent in enumerate(image.shape)]

    def element(*at: Any) -> Any:
        total: Any = None
        for taps in np.ndindex(*(TAPS,) * len(axes)):
            chosen = dict(zip(reversed(axes), reversed(taps), strict=True))
            place, weight = list(at), None
            for axis in axes:
                pixels, shares = lines[axis]
                place[axis] = pixels(at[axis], chosen[axis])
                share = shares(at[axis], chosen[axis])
                weight = share if weight is None else weight * share
            real = (image(*place).astype("int32") - affine.zero).astype("float32") * scale
            term = rounded(weight * real)
            total = term if total is None else total + term
        return stored(quotient(total, result.scale, fused=fused), result, clip)

    return te.compute(shape, element, name="quantize_resize")


def linear(graph: Graph, call: relax.Call) -> Value | None:
    """Take one axis of an image of bytes, or a second one of one that waits, where results read two pixels each."""
    found = resample.described(graph, call)
    if found is None:
        return None
    source, axis, first, weights = found
    if axis not in resample.PIXEL_AXES or len(shape_of(source)) != 2 + len(resample.PIXEL_AXES):
        return None
    tables = [graph.look(table).constant for table in (first, weights)]
    if tables[0] is None or tables[1] is None or tables[1].shape[1] != TAPS or tables[1].dtype != np.float32:
        return None
    line = Line(axis=axis, first=tables[0], weights=tables[1])
    value = graph.look(source)
    pending = value.pending
    if isinstance(pending, Resized) and graph.is_used_once(source) and pending.clip == Clip():
        if any(other.axis == axis for other in pending.lines):
            return None
        return Value(pending=replace(pending, lines=(*pending.lines, line)))
    if not isinstance(value, Dequantized):
        return None
    return Value(pending=Resized(value=value, lines=(line,), clip=Clip()))


def choice(graph: Graph, call: relax.Call) -> Value | None:
    """Choose pixels of bytes along an axis of unknown extent."""
    from tvm import relax, s_tir

    from forge_pipeline.codegen import resize

    if not isinstance(call.args[1], relax.Tuple) or not call.args[1].fields:
        return None
    value = graph.look(call.args[1].fields[0])  # extents may follow: those of the image
    if not isinstance(value, Dequantized):
        return None
    sch = s_tir.Schedule(graph.builder.get()[call.args[0]])
    notes = [sch.get(block).annotations.get(resize.CHOICE) for block in moves.blocks(sch)]
    if len(notes) != 1 or notes[0] is None:
        return None
    source = value.source
    is_blocked = len(shape_of(call)) == 2 + len(resample.PIXEL_AXES) and graph.is_blocked(source)
    image = source.blocked if is_blocked else graph.plain(source)
    result = graph.kernel(resize.chosen, image, name="resize_u8", choice=str(notes[0]))
    done = Value(blocked=result, channels=source.channels) if is_blocked else Value(plain=result)
    return dequantized(done, value.affine)


def resized(graph: Graph, call: relax.Call) -> Value | None:
    """Take either."""
    return choice(graph, call) or linear(graph, call)


HANDLERS = {"relax.call_tir": resized}
