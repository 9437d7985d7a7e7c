"""Operators that compute each result by itself, in either layout; and the copies between the layouts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.concat import Joined, concatenate
from forge_pipeline.codegen.layout.builder import COMPUTED, Graph, Value, dtype_of, has_known_shape, ints
from forge_pipeline.codegen.layout.constants import FOLDED_SHAPES, reshaped
from forge_pipeline.codegen.layout.symbolic_cast import Cast, Renamed
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

ZERO_KEEPS_FINITE = (
    "relax.abs", "relax.clip", "relax.erf", "relax.exp", "relax.negative", "relax.nn.gelu", "relax.nn.gelu_tanh",
    "relax.nn.leakyrelu", "relax.nn.relu", "relax.nn.silu", "relax.nn.softplus", "relax.sigmoid", "relax.sqrt",
    "relax.square", "relax.tanh",
)  # fmt: skip
"""Unary operators whose value at zero, which fills missing channels, is finite."""

BINARY = ("relax.add", "relax.divide", "relax.maximum", "relax.minimum", "relax.multiply", "relax.subtract")


def unary(graph: Graph, call: relax.Call) -> Value | None:
    """Stay in the blocked layout."""
    value, kind = _before_cast(graph, graph.look(call.args[0]))
    if not graph.is_blocked(value):
        return None
    return _cast_later(Value(blocked=_apply(graph, call, value.blocked), channels=value.channels), kind)


def _apply(graph: Graph, call: relax.Call, operand: relax.Expr) -> relax.Expr:
    return graph.emit(relax.Call(call.op, [operand, *call.args[1:]], call.attrs))


def _before_cast(graph: Graph, value: Value) -> tuple[Value, Any]:
    """Return a value before its extents get other names, and the type with those; None where no cast is put off."""
    if isinstance(value.deferred, Renamed):
        value.deferred = Cast(value=value.deferred.inner.emit(graph), kind=value.deferred.kind)
    if isinstance(value.deferred, Cast) and value.deferred.value.blocked is not None:
        return value.deferred.value, value.deferred.kind
    return value, None


def _are_alike(left: Value, right: Value, kind: Any, other_kind: Any) -> bool:
    """Return whether two values have the same extents by either name."""
    kinds = (getattr(left.blocked, "ty", None), kind), (getattr(right.blocked, "ty", None), other_kind)
    return all(map(tvm_ffi.structural_equal, *kinds))


def _cast_later(value: Value, kind: Any) -> Value:
    return value if kind is None else Value(deferred=Cast(value=value, kind=kind), channels=value.channels)


def binary(graph: Graph, call: relax.Call) -> Value | None:
    """Stay in the blocked layout when both operands have it, or one is constant for each channel."""
    operands = [graph.look(argument) for argument in call.args]
    divides = call.op.name == "relax.divide"
    for place, other in enumerate(reversed(operands)):
        if other.constant is None or (divides and place == 1):
            continue
        image, kind = _before_cast(graph, operands[place])
        if not graph.is_blocked(image):
            continue
        operand = graph.per_channel(other.constant, image.channels, filler=1.0 if divides else 0.0)
        if operand is None:
            return None
        pair = [image.blocked, operand] if place == 0 else [operand, image.blocked]
        done = Value(blocked=graph.emit(relax.Call(call.op, pair, call.attrs)), channels=image.channels)
        return _cast_later(done, kind)
    if any(operand.constant is not None for operand in operands):
        return None
    (left, kind), (right, other_kind) = (_before_cast(graph, operand) for operand in operands)
    if not (kind is not None and other_kind is not None and _are_alike(left, right, kind, other_kind)):
        (left, right), kind = operands, None
    if not (graph.is_blocked(left) and graph.is_blocked(right)) or left.channels != right.channels:
        return None
    if divides and left.channels % graph.block(left.channels):
        return None
    pair = [left.blocked, right.blocked]
    return _cast_later(Value(blocked=graph.emit(relax.Call(call.op, pair, call.attrs)), channels=left.channels), kind)


def change_kind(graph: Graph, call: relax.Call) -> Value | None:
    """Stay in the blocked layout between the types that kernels compute in."""
    value = graph.look(call.args[0])
    if {dtype_of(call.args[0]), str(call.attrs.dtype)} != set(COMPUTED) or not graph.is_blocked(value):
        return None
    return Value(blocked=_apply(graph, call, value.blocked), channels=value.channels)


def prelu(graph: Graph, call: relax.Call) -> Value | None:
    """Stay in the blocked layout where the slope is one number, or one for each channel."""
    (value, kind), slope = _before_cast(graph, graph.look(call.args[0])), graph.look(call.args[1]).constant
    if slope is None or not graph.is_blocked(value) or int(call.attrs.axis) not in (1, -3):
        return None
    slopes = graph.per_channel(slope.reshape(1, -1, 1, 1), value.channels)
    if slopes is None:
        return None
    image = value.blocked
    falls = graph.emit(relax.op.less(image, relax.const(0.0, dtype_of(call.args[0]))))
    sloped = graph.emit(relax.op.multiply(image, slopes))
    return _cast_later(Value(blocked=graph.emit(relax.op.where(falls, sloped, image)), channels=value.channels), kind)


def concat(graph: Graph, call: relax.Call) -> Value | None:
    """Concatenate the channels of images: whole blocks, when every part fills its own."""
    parts = graph.look(call.args[0]).parts
    if parts is None or int(call.attrs.axis) not in (1, -3):
        return None
    if all(part.constant is None and graph.comes_blocked(part) for part in parts) and not any(
        part.channels % graph.block(part.channels) for part in parts
    ):
        joined = Joined(parts=parts, axis=4 if graph.channels_last else 1)
        return Value(deferred=joined, channels=joined.channels) if graph.machine.pairs else joined.emit(graph)
    if not has_known_shape(call, rank=4, symbolic_axes=()):
        return None
    return Value(plain=concatenate(graph, [graph.plain(part) for part in parts], axis=1))


def split(graph: Graph, call: relax.Call) -> Value | None:
    """Split into whole blocks, when every part fills its own."""
    parts = split_blocks(graph, graph.look(call.args[0]), call)
    return None if parts is None else Value(parts=tuple(parts))


def split_blocks(graph: Graph, value: Value, call: relax.Call) -> list[Value] | None:
    """Return the parts of a value that is split as ``call`` says, as whole blocks; None where it has none."""
    if not graph.is_blocked(value) or int(call.attrs.axis) not in (1, -3):
        return None
    axis, lanes = (4, 1) if graph.channels_last else (1, graph.machine.lanes)
    where = call.attrs.indices_or_sections
    if isinstance(where, tirx.IntImm | int):
        if value.channels % int(where):
            return None
        size = value.channels // int(where)
        edges = list(range(0, value.channels + 1, size))
    else:
        edges = [0, *ints(where), value.channels]
    if any(edge % lanes for edge in edges):
        return None
    parts = []
    for start, stop in pairwise(edges):
        piece = relax.op.strided_slice(value.blocked, axes=[axis], begin=[start // lanes], end=[stop // lanes])
        parts.append(Value(blocked=graph.emit(piece), channels=stop - start))
    return parts


def reshape_constant(graph: Graph, call: relax.Call) -> Value | None:
    """Do to a constant now what would be done at every run."""
    array = graph.look(call.args[0]).constant
    if array is None or not has_known_shape(call, symbolic_axes=()):
        return None
    return Value(constant=reshaped(array, call))


def schedule(sch: Schedule, machine: Machine) -> None:
    """Schedule a kernel without a reduction, as `joined_axes` leaves it: all else is inlined into its last block."""
    for block in primitives.blocks(sch):
        schedule_elementwise(sch, block, machine)


HANDLERS = {
    **dict.fromkeys(ZERO_KEEPS_FINITE, unary),
    **dict.fromkeys(BINARY, binary),
    **dict.fromkeys(FOLDED_SHAPES, reshape_constant),
    "relax.astype": change_kind,
    "relax.concat": concat,
    "relax.nn.prelu": prelu,
    "relax.split": split,
}
