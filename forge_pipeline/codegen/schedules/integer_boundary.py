"""Where a model enters and leaves integers, and what only moves them: shapes, choices, clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value, ints
from forge_pipeline.codegen.integer import (
    Affine,
    BlockWeight,
    Clip,
    Dequantized,
    IntegerWeight,
    clipped,
    dequantized,
    to_integers,
    waiting,
)

if TYPE_CHECKING:
    from tvm import relax, te

MOVES = (
    "relax.reshape", "relax.permute_dims", "relax.expand_dims", "relax.squeeze", "relax.strided_slice",
    "relax.broadcast_to", "relax.flatten",
)  # fmt: skip


def affine_of(graph: Graph, call: relax.Call, dtype: str) -> Affine | None:
    """Return one scale and zero point for a whole tensor of integers of type ``dtype``; None if it has others."""
    scale, zero = (graph.look(argument).constant for argument in call.args[1:3])
    if dtype != "uint8" or scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    if scale.dtype != np.float32 or not float(scale.item()) > 0:
        return None
    return Affine(scale=float(scale.item()), zero=int(zero.item()))


def dequantize(graph: Graph, call: relax.Call) -> Value | None:
    """Remember integers as what they are; nothing is computed."""
    value = graph.look(call.args[0])
    if str(call.attrs.out_dtype) != "float32":
        return None
    if value.constant is not None:
        return _weight(graph, call, value.constant)
    affine = affine_of(graph, call, str(call.args[0].ty.dtype))
    return None if affine is None else dequantized(value, affine)


def _weight(graph: Graph, call: relax.Call, stored: Array) -> Value | None:
    scale, zero = (graph.look(argument).constant for argument in call.args[1:3])
    axis = int(call.attrs.axis) % max(stored.ndim, 1)
    if scale is None or zero is None or stored.dtype.kind not in "iu" or stored.dtype.itemsize > 4:
        return None
    if scale.dtype != np.float32 or scale.ndim > 1 or zero.ndim > 1:
        return None
    spread = [1] * stored.ndim
    if max(scale.size, zero.size) > 1:
        spread[axis] = -1
    wide = stored.astype(np.int64) - zero.reshape(spread if zero.size > 1 else [1] * stored.ndim).astype(np.int64)
    factors = scale.reshape(spread if scale.size > 1 else [1] * stored.ndim)
    return IntegerWeight(integers=wide, scale=scale.reshape(-1), axis=axis, constant=wide.astype(np.float32) * factors)


def quantize(graph: Graph, call: relax.Call) -> Value | None:
    """Store what waits for it in integers; anything else is divided and rounded."""
    affine = affine_of(graph, call, str(call.attrs.out_dtype))
    if affine is None or str(call.args[0].ty.dtype) != "float32":
        return None
    pending = waiting(graph, call.args[0])
    if pending is not None:
        return pending.quantized(graph, affine)
    value = graph.look(call.args[0])
    if isinstance(value, Dequantized) and value.affine == affine:
        return value.source
    if value.constant is not None:
        return None
    if graph.is_blocked(value):
        integers = graph.kernel(to_integers, value.blocked, name="quantize", affine=affine, clip=Clip())
        return Value(blocked=integers, channels=value.channels)
    return Value(plain=graph.kernel(to_integers, graph.plain(value), name="quantize", affine=affine, clip=Clip()))


def bound(graph: Graph, call: relax.Call) -> Value | None:
    """Clip: what waits stores less; integers are clipped as integers."""
    low, high, image = float("-inf"), float("inf"), call.args[0]
    if call.op.name == "relax.nn.relu":
        low = 0.0
    else:
        constant = graph.look(call.args[1]).constant
        if constant is None:
            image, constant = call.args[1], graph.look(call.args[0]).constant
        if constant is None or constant.size != 1 or constant.ndim > len(call.ty.shape.values):
            return None
        if call.op.name == "relax.maximum":
            low = float(constant.item())
        else:
            high = float(constant.item())
    pending = waiting(graph, image)
    if pending is not None:
        return clipped(pending, low, high)
    value = graph.look(image)
    if not isinstance(value, Dequantized) or not graph.is_used_once(image):
        return None
    ends = Clip(low=low, high=high).steps(value.affine)
    if low > float("-inf") and float(np.rint(low / value.affine.scale)) * value.affine.scale != low:
        return None  # the bound is none of the values that integers have
    if high < float("inf") and ends[1] * value.affine.scale < high and ends[1] + value.affine.zero < 255:
        return None
    levels = tuple(int(end) + value.affine.zero for end in ends)
    return dequantized(_integers(graph, value.source, levels), value.affine)


def _integers(graph: Graph, source: Value, levels: tuple[int, ...]) -> Value:
    if graph.is_blocked(source):
        result = graph.kernel(_limit, source.blocked, name="limit", levels=levels)
        return Value(blocked=result, channels=source.channels)
    return Value(plain=graph.kernel(_limit, graph.plain(source), name="limit", levels=levels))


def _limit(image: te.Tensor, levels: tuple[int, int]) -> te.Tensor:
    from tvm import te, tirx

    low, high = (tirx.const(level, "uint8") for level in levels)
    return te.compute(image.shape, lambda *at: tirx.max(tirx.min(image(*at), high), low), name="limit")


def move(graph: Graph, call: relax.Call) -> Value | None:
    """Move integers instead of floats, and constants at once."""
    from tvm import relax

    value = graph.look(call.args[0])
    if isinstance(value, IntegerWeight):
        return _moved_weight(value, call) or _moved_block(_as_block(value), call)
    if isinstance(value, BlockWeight):
        return _moved_block(value, call)
    if not isinstance(value, Dequantized):
        return None
    moved = graph.emit(relax.Call(call.op, [graph.plain(value.source), *call.args[1:]], call.attrs))
    return dequantized(Value(plain=moved), value.affine)


def _moved_weight(value: IntegerWeight, call: relax.Call) -> Value | None:
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


def _moved_block(value: BlockWeight, call: relax.Call) -> Value | None:
    """Move integers and scales alike."""
    if call.op.name == "relax.permute_dims":
        axes = None if call.attrs.axes is None else ints(call.attrs.axes)
        integers, scales = (array.transpose(axes) for array in (value.integers, value.scales))
    elif call.op.name == "relax.reshape":
        shape = tuple(int(extent) for extent in call.ty.shape.values)
        integers, scales = (array.reshape(shape) for array in (value.integers, value.scales))
    else:
        return None
    return BlockWeight(integers=integers, scales=scales, constant=integers.astype(np.float32) * scales)


def concat(graph: Graph, call: relax.Call) -> Value | None:
    """Concatenate integers that mean the same; whole blocks where every part fills its own."""
    from tvm import relax

    parts = graph.look(call.args[0]).parts
    if parts is None or not all(isinstance(part, Dequantized) for part in parts):
        return None
    known: list[Any] = list(parts)
    if any(part.affine != known[0].affine for part in known):
        return None
    sources, lanes = [part.source for part in known], graph.machine.lanes
    in_blocks = int(call.attrs.axis) in (1, -3) and all(graph.is_blocked(source) for source in sources)
    if in_blocks and not any(source.channels % lanes for source in sources):
        joined = graph.emit(relax.op.concat([source.blocked for source in sources], axis=1))
        result = Value(blocked=joined, channels=sum(source.channels for source in sources))
    else:
        plain = [graph.plain(source) for source in sources]
        result = Value(plain=graph.emit(relax.op.concat(plain, axis=int(call.attrs.axis))))
    return dequantized(result, known[0].affine)


HANDLERS = {
    "relax.dequantize": dequantize,
    "relax.quantize": quantize,
    "relax.concat": concat,
    **dict.fromkeys(("relax.nn.relu", "relax.maximum", "relax.minimum"), bound),
    **dict.fromkeys(MOVES, move),
}
