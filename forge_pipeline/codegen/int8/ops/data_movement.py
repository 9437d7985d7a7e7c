"""What only moves quantized values: shapes, choices, padding, and values side by side, which may need a new scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax, tirx

from forge_pipeline.codegen.float32 import elementwise, nearest
from forge_pipeline.codegen.float32.concat import concatenate
from forge_pipeline.codegen.int8.ops import lookup_table
from forge_pipeline.codegen.int8.ops.byte_functions import BYTES, ByteFunction, byte_function_of, reals
from forge_pipeline.codegen.layout.affine import Affine, Clip, limit
from forge_pipeline.codegen.layout.builder import Graph, Value, ints, shape_of
from forge_pipeline.codegen.layout.quantized_values import (
    BlockWeight,
    Dequantized,
    IntegerWeight,
    Rounded,
    dequantized,
    divided,
)

IMAGE = 4
"""Axes of an image: N, C, H, W."""

MOVES = (
    "relax.reshape", "relax.permute_dims", "relax.expand_dims", "relax.squeeze", "relax.strided_slice",
    "relax.broadcast_to", "relax.flatten", "relax.take",
)  # fmt: skip


def move(graph: Graph, call: relax.Call) -> Value | None:
    """Move integers instead of floats, and constants at once."""
    value = graph.look(call.args[0])
    if isinstance(value, IntegerWeight):
        return _move_weight(value, call) or _move_block(_as_block(value), call)
    if isinstance(value, BlockWeight):
        return _move_block(value, call)
    if not isinstance(value, Dequantized):
        return None
    source = value.source
    if isinstance(source, Rounded) and source.deferred is not None and call.op.name == "relax.permute_dims":
        axes = ints(call.attrs.axes) if call.attrs.axes is not None else range(len(source.axes))[::-1]
        return dequantized(source.transposed([axis % len(source.axes) for axis in axes]), value.affine)
    if call.op.name == "relax.take":
        taken = nearest.take_pixels(graph, source, call)
        if taken is not None:
            return dequantized(taken, value.affine)
    rest = [graph.operand(argument) for argument in call.args[1:]]
    moved = graph.emit(relax.Call(call.op, [graph.plain(value.source), *rest], call.attrs))
    return dequantized(Value(plain=moved), value.affine)


def _move_weight(value: IntegerWeight, call: relax.Call) -> Value | None:
    assert value.constant is not None  # noqa: S101 - an integer weight always has one
    if call.op.name == "relax.permute_dims" and call.attrs.axes is not None:
        axes = [int(axis) for axis in call.attrs.axes]
        integers, constant, axis = (
            value.integers.transpose(axes),
            value.constant.transpose(axes),
            axes.index(value.axis),
        )
    elif call.op.name == "relax.reshape":
        shape = tuple(int(extent) for extent in call.ty.shape.values)
        if value.scale.size > 1 and max(shape, default=1) != value.scale.size:
            return None
        integers, constant = value.integers.reshape(shape), value.constant.reshape(shape)
        axis = int(np.argmax(shape)) if value.scale.size > 1 else 0
        if value.scale.size > 1 and integers.size != value.scale.size:
            return None
    else:
        return None
    return IntegerWeight(integers=integers, scale=value.scale, axis=axis, constant=constant)


def _as_block(value: IntegerWeight) -> BlockWeight:
    spread = [1] * value.integers.ndim
    spread[value.axis] = -1
    scales = np.broadcast_to(
        value.scale.reshape(spread if value.scale.size > 1 else (1,) * len(spread)), value.integers.shape
    )
    return BlockWeight(integers=value.integers, scales=scales, constant=value.constant)


def _move_block(value: BlockWeight, call: relax.Call) -> Value | None:
    """Move integers and scales alike."""
    assert value.constant is not None  # noqa: S101 - a weight always has one
    arrays = value.integers, value.scales, value.constant
    if call.op.name == "relax.permute_dims":
        axes = None if call.attrs.axes is None else ints(call.attrs.axes)
        integers, scales, constant = (array.transpose(axes) for array in arrays)
    elif call.op.name == "relax.reshape":
        shape = tuple(int(extent) for extent in call.ty.shape.values)
        integers, scales, constant = (array.reshape(shape) for array in arrays)
    else:
        return None
    return BlockWeight(integers=integers, scales=scales, constant=constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenated:
    """Values side by side, each with its own scale, until they have one: a ``DeferredResult``."""

    parts: tuple[Value, ...]
    axis: int
    clip: Clip

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""
        joined = graph.emit(relax.op.concat([graph.plain(part) for part in self.parts], axis=self.axis))
        if self.clip == Clip():
            return Value(plain=joined)
        return Value(plain=graph.kernel(limit, joined, name="limit", clip=self.clip))

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Give every part the common scale, and join them."""
        low, high = self.clip.low, self.clip.high
        moved = []
        for part in self.parts:
            function = byte_function_of(part)
            inside = None if function is None else replace(function, values=np.clip(function.values, low, high))
            value = None if inside is None else lookup_table.stored(inside, affine)
            moved.append(divided(graph, part, affine, self.clip) if value is None else value)
        return _concatenate(graph, moved, self.axis)


def concat(graph: Graph, call: relax.Call) -> Value | None:
    """Concatenate integers that mean the same at once; others when it is known what scale they all are to have."""
    parts = graph.look(call.args[0]).parts
    if parts is None or not all(isinstance(part, Dequantized | ByteFunction) for part in parts):
        return None
    known: list[Any] = list(parts)
    axis = int(call.attrs.axis)
    if all(isinstance(part, Dequantized) and part.affine == known[0].affine for part in known):
        return dequantized(_concatenate(graph, [part.source for part in known], axis), known[0].affine)
    if any(part.values.dtype != np.float32 for part in known if isinstance(part, ByteFunction)):
        return None
    return Value(deferred=Concatenated(parts=tuple(parts), axis=axis, clip=Clip()))


def _concatenate(graph: Graph, sources: list[Value], axis: int) -> Value:
    """Concatenate bytes: whole blocks where every part fills its own."""
    lanes = graph.machine.lanes
    in_blocks = axis in (1, -3) and all(graph.is_blocked(source) for source in sources)
    if in_blocks and not any(source.channels % lanes for source in sources):
        whole = concatenate(graph, [source.blocked for source in sources], axis=1)
        return Value(blocked=whole, channels=sum(source.channels for source in sources))
    plain = [graph.plain(source) for source in sources]
    if axis in (1, -3) and all(len(shape_of(source)) == IMAGE for source in plain):
        return Value(plain=concatenate(graph, plain, axis=1))
    return Value(plain=graph.emit(relax.op.concat(plain, axis=axis)))


def split(graph: Graph, call: relax.Call) -> Value | None:
    """Split integers instead of floats."""
    value = graph.look(call.args[0])
    if not isinstance(value, Dequantized):
        return None
    parts = elementwise.split_blocks(graph, value.source, call)
    if parts is None:
        axis = int(call.attrs.axis)
        sizes = [kind.shape.values[axis] for kind in call.ty.fields]
        if not all(isinstance(size, tirx.IntImm | int) for size in sizes):
            return None
        edges, plain = np.cumsum([0, *map(int, sizes)]).tolist(), graph.plain(value.source)
        slices = [relax.op.strided_slice(plain, axes=[axis], begin=[b], end=[e]) for b, e in pairwise(edges)]
        parts = [Value(plain=graph.emit(piece)) for piece in slices]
    return Value(parts=tuple(dequantized(part, value.affine) for part in parts))


def pad(graph: Graph, call: relax.Call) -> Value | None:
    """Put integers around an image, where the constant is one of the values that they have."""
    value = graph.look(call.args[0])
    if not isinstance(value, Dequantized) or call.attrs.pad_mode != "constant":
        return None
    filler = np.float32(call.attrs.pad_value)
    level = np.flatnonzero(reals(BYTES, value.affine) == filler)
    if not level.size:
        return None
    padded = relax.op.nn.pad(graph.plain(value.source), list(ints(call.attrs.pad_width)), pad_value=float(level[0]))
    return dequantized(Value(plain=graph.emit(padded)), value.affine)


HANDLERS = {
    **dict.fromkeys(MOVES, move),
    "relax.concat": concat,
    "relax.nn.pad": pad,
    "relax.split": split,
}
