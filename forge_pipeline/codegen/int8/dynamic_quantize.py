"""Activations whose scale is measured when the model runs: DynamicQuantizeLinear, and what reads its bytes.

A product of them is one of bytes, whose zero point is taken from its sums, and whose factors are multiplied by the
scale, by two small kernels in front of it. An image is padded with the measured zero point before it is convolved.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.layout.affine import LEVELS, ROUNDS
from forge_pipeline.codegen.layout.builder import Graph, Unchanged, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DynamicallyQuantized
from forge_pipeline.codegen.onnx_import.operators.integers.quantization import MEASURE
from forge_pipeline.codegen.tir import primitives, script
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_dynamic_quantize"
SIDE_BY_SIDE = 4
"""Vectors whose extremes are followed at once: as many as hide the latency of a comparison."""

OPAQUE = 8
"""TVM's kOpaque: nothing is fused with it."""


def measure(graph: Graph, call: relax.Call) -> Value | None:
    """Find scale and zero point of a tensor in one pass over it."""
    if not str(call.args[0].name_hint).startswith(MEASURE):
        return None
    value = graph.look(call.args[1].fields[0])
    in_blocks = graph.is_blocked(value) and value.channels % graph.machine.lanes == 0
    source = value.blocked if in_blocks else graph.plain(value)
    flat = graph.emit(relax.op.reshape(source, (math.prod(shape_of(source)),)))
    variable = graph.builder.add_func(_kernel(SIDE_BY_SIDE * graph.machine.lanes), MEASURE)
    kinds = [relax.TensorType((), "float32"), relax.TensorType((), "uint8")]
    found = graph.emit(relax.call_tir(variable, [flat], kinds))
    return Value(parts=tuple(Value(plain=graph.emit(relax.TupleGetItem(found, index))) for index in range(2)))


def _kernel(width: int) -> Any:
    """Return ``values -> (scale, zero)``, rounded where ONNX Runtime rounds them."""

    def scale_of(low: Any, high: Any) -> Any:
        return T.Select(high == low, T.float32(1), (high - low) / T.float32(LEVELS))

    @script.prim_func(s_tir=True, private=True)
    def measure(a: T.handle, s: T.handle, z: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        count = T.int64()
        values = T.match_buffer(a, (count,), "float32")
        scale = T.match_buffer(s, (), "float32")
        zero = T.match_buffer(z, (), "uint8")
        for whole in T.serial(1):
            with T.sblock("measure"):
                T.sblock_attr({primitives.FAMILY: NAME})
                at = T.axis.opaque(1, whole)
                T.reads()
                T.writes()
                low = T.sblock_alloc_buffer((width,), "float32", scope="local")
                high = T.sblock_alloc_buffer((width,), "float32", scope="local")
                for lane in T.vectorized(width):
                    low[lane] = T.float32(0)
                for lane in T.vectorized(width):
                    high[lane] = T.float32(0)
                for vector in T.serial(count // width):
                    for lane in T.vectorized(width):
                        low[lane] = T.min(low[lane], values[(at + vector) * width + lane])
                    for lane in T.vectorized(width):
                        high[lane] = T.max(high[lane], values[(at + vector) * width + lane])
                for rest in T.serial(count % width):
                    low[0] = T.min(low[0], values[count // width * width + rest])
                    high[0] = T.max(high[0], values[count // width * width + rest])
                for lane in T.serial(width):
                    low[0] = T.min(low[0], low[lane])
                    high[0] = T.max(high[0], high[lane])
                scale[()] = scale_of(low[0], high[0])
                zero[()] = T.nearbyint(
                    T.min(T.max(T.float32(0) - low[0] / scale_of(low[0], high[0]), T.float32(0)), T.float32(LEVELS))
                ).astype("uint8")

    return measure


def quantize(graph: Graph, call: relax.Call) -> Value | None:
    """Divide by a scale that is known when the model runs, and round."""
    operands = _dynamic(graph, call, str(call.attrs.out_dtype))
    if operands is None or str(call.args[0].ty.dtype) != "float32":
        return None
    value = graph.look(call.args[0])
    if graph.is_blocked(value):
        return Value(blocked=graph.kernel(to_bytes, value.blocked, *operands, name="quantize"), channels=value.channels)
    return Value(plain=graph.kernel(to_bytes, graph.plain(value), *operands, name="quantize"))


def dequantize(graph: Graph, call: relax.Call) -> Value | None:
    """Remember bytes as what they are, with the measured scale."""
    operands = _dynamic(graph, call, str(call.args[0].ty.dtype))
    if operands is None or str(call.attrs.out_dtype) != "float32":
        return None
    source = graph.look(call.args[0])
    scale, zero = operands
    return DynamicallyQuantized(
        source=source, scale=scale, zero=zero, deferred=Unchanged(call=call), channels=source.channels
    )


def _dynamic(graph: Graph, call: relax.Call, dtype: str) -> tuple[relax.Expr, relax.Expr] | None:
    """Return scale and zero point, if they are single numbers that are known when the model runs."""
    values = [graph.look(argument) for argument in call.args[1:3]]
    if dtype != "uint8" or any(value.constant is not None for value in values):
        return None
    if any(shape_of(argument) != () for argument in call.args[1:3]) or str(call.args[1].ty.dtype) != "float32":
        return None
    return graph.plain(values[0]), graph.plain(values[1])


def to_bytes(image: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
    """Describe the quantization of a float tensor in any form."""

    def element(*at: Any) -> Any:
        offset = zero().astype("int32").astype("float32")
        steps = tirx.max(tirx.min(image(*at) / scale(), tirx.const(LEVELS, "float32") - offset), -offset)
        shifted = steps + tirx.const(ROUNDS, "float32")
        return (tirx.reinterpret("int32", shifted) + zero().astype("int32")).astype("uint8")

    return te.compute(image.shape, element, name="quantize")


def pad_image(graph: Graph, image: Value, dynamic: DynamicallyQuantized, geometry: Geometry) -> tuple[Value, Geometry]:
    """Return an image of bytes with the measured zero point around it, and a convolution that pads no more."""
    if not any(geometry.padding):
        return image, geometry
    in_blocks = graph.is_blocked(image)
    source = image.blocked if in_blocks else graph.plain(image)
    made = graph.kernel(_surround, source, dynamic.zero, name="pad", geometry=geometry)
    top, left, bottom, right = geometry.padding
    size = (geometry.size[0] + top + bottom, geometry.size[1] + left + right)
    value = Value(blocked=made, channels=geometry.channels) if in_blocks else Value(plain=made)
    return value, replace(geometry, size=size, padding=(0, 0, 0, 0))


def _surround(image: te.Tensor, zero: te.Tensor, geometry: Geometry) -> te.Tensor:
    (top, left, bottom, right), (height, width) = geometry.padding, geometry.of(image).size
    batch, channels, _, _, *lanes = image.shape

    def element(n: Any, c: Any, h: Any, w: Any, *lane: Any) -> Any:
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        return tirx.if_then_else(inside, image(n, c, h - top, w - left, *lane), zero())

    return te.compute((batch, channels, height + top + bottom, width + left + right, *lanes), element, name="pad")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Leave the kernel as it is written."""


HANDLERS = {"relax.call_tir": measure, "relax.quantize": quantize, "relax.dequantize": dequantize}
