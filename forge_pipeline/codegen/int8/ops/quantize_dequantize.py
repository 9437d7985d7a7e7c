"""Where a model enters and leaves integers, and where they are clipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.int8.ops import lookup_table
from forge_pipeline.codegen.int8.ops.byte_functions import BYTES, Lookup, byte_function_of
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, has_known_shape
from forge_pipeline.codegen.layout.quantized_values import (
    Dequantized,
    IntegerWeight,
    clipped,
    deferred_result,
    dequantized,
    divided,
    rounded_later,
)


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
    wide = np.int16 if stored.dtype.itemsize == 1 else np.int64
    codes = stored.astype(wide) - zero.reshape(spread if zero.size > 1 else [1] * stored.ndim).astype(wide)
    factors = scale.reshape(spread if scale.size > 1 else [1] * stored.ndim)
    return IntegerWeight(
        integers=codes, scale=scale.reshape(-1), axis=axis, constant=codes.astype(np.float32) * factors
    )


def quantize(graph: Graph, call: relax.Call) -> Value | None:
    """Store what was deferred for it in integers; anything else is divided and rounded."""
    affine = affine_of(graph, call, str(call.attrs.out_dtype))
    if affine is None or str(call.args[0].ty.dtype) != "float32":
        return None
    deferred = deferred_result(graph, call.args[0])
    if deferred is not None:
        return deferred.quantized(graph, affine)
    value = graph.look(call.args[0])
    function = byte_function_of(value)
    if function is not None:
        return lookup_table.stored(function, affine)
    if value.constant is not None:
        return None
    if graph.is_input(value) and has_known_shape(call.args[0], rank=4):
        assert value.plain is not None  # noqa: S101 - an input is
        return rounded_later(value.plain, affine, (0, 1, 2, 3))
    return divided(graph, value, affine, Clip())


def bound(graph: Graph, call: relax.Call) -> Value | None:
    """Clip: what is deferred stores less; integers are clipped as integers."""
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
    deferred = deferred_result(graph, image)
    if deferred is not None:
        return clipped(deferred, low, high)
    value = graph.look(image)
    if not isinstance(value, Dequantized) or not graph.is_used_once(image):
        return None
    least, most = (np.float32(level - value.affine.zero) * np.float32(value.affine.scale) for level in (0, LEVELS))
    if any(least < end < most and not _is_level(end, value.affine) for end in (low, high)):
        return None
    levels = tuple(int(end) + value.affine.zero for end in Clip(low=low, high=high).codes(value.affine))
    limited = Lookup(
        source=value.source,
        table=np.clip(BYTES, levels[0], levels[1]).astype(np.uint8),
        channels=value.source.channels,
        deferred=Limited(source=value.source, levels=levels),
    )
    return dequantized(limited, value.affine)


def _is_level(value: float, affine: Affine) -> bool:
    """Return whether an integer stands for a float32."""
    exact, scale = np.float32(value), np.float32(affine.scale)
    return bool(np.rint(exact / scale) * scale == exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """Emits bytes clipped to ``levels``, in the form of ``source``."""

    source: Value
    levels: tuple[int, ...]

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        source, levels = self.source, self.levels
        if graph.is_blocked(source):
            result = graph.kernel(_limit, source.blocked, name="limit", levels=levels)
            return Value(blocked=result, channels=source.channels)
        return Value(plain=graph.kernel(_limit, graph.plain(source), name="limit", levels=levels))


def _limit(image: te.Tensor, levels: tuple[int, int]) -> te.Tensor:
    low, high = (tirx.const(level, "uint8") for level in levels)
    return te.compute(image.shape, lambda *at: tirx.max(tirx.min(image(*at), high), low), name="limit")


HANDLERS = {
    "relax.dequantize": dequantize,
    "relax.quantize": quantize,
    **dict.fromkeys(("relax.nn.relu", "relax.maximum", "relax.minimum"), bound),
}
