"""Products of bytes whose int32 sums are the result: MatMulInteger and ConvInteger, with the kernels of pairs.

The importer has them as products of int32 values, each a tensor of bytes minus its zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from forge_pipeline.codegen.float32.conv.geometry import conv1d_geometry, conv2d_geometry
from forge_pipeline.codegen.int8 import weights
from forge_pipeline.codegen.int8.conv.conv3d import over_volume
from forge_pipeline.codegen.int8.conv.match import Conv1d, Conv2d, Convolution, ConvStrategy
from forge_pipeline.codegen.int8.isa.table import has_dot_product
from forge_pipeline.codegen.int8.ops.matmul import Product
from forge_pipeline.codegen.layout.builder import Array, Graph, Unchanged, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DynamicallyQuantized


@dataclass(slots=True, kw_only=True)
class Widened(Value):
    """An int32 value that is known as bytes minus a zero point: ``zero``, or one that is found when the model runs."""

    source: Value
    zero: int
    found: relax.Expr | None = None

    def operands(self, graph: Graph, channels: int) -> dict[str, Any]:
        """Return the fields of sums of these bytes that nothing is added to and no scale is applied to."""
        dynamic = None
        if self.found is not None:
            one = graph.constant(np.ones((), np.float32))
            dynamic = DynamicallyQuantized(
                source=self.source, scale=one, zero=self.found, channels=self.source.channels
            )
        return {
            "source": self.source, "zero": self.zero, "scale": np.ones(channels, np.float32),
            "bias": np.zeros(channels, np.int64), "raw": True, "dynamic": dynamic,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums of a product or of a convolution: nothing is folded into them."""

    inner: Product | Convolution

    def emit(self, graph: Graph) -> Value:
        """Emit them."""
        return self.inner.emit(graph)


def widen(graph: Graph, call: relax.Call) -> Value | None:
    """Remember bytes as what they are."""
    value = graph.look(call.args[0])
    if not has_dot_product(graph.machine) or value.constant is not None or str(call.attrs.dtype) != "int32":
        return None
    if str(getattr(call.args[0].ty, "dtype", "")) != "uint8":
        return None
    return Widened(source=value, zero=0, channels=value.channels, deferred=Unchanged(call=call))


def less_zero(graph: Graph, call: relax.Call) -> Value | None:
    """Take a zero point off bytes."""
    value, zero = (graph.look(argument) for argument in call.args)
    if not isinstance(value, Widened) or value.found is not None:
        return None
    if isinstance(zero, Widened) and shape_of(call.args[1]) == () and value.zero == zero.zero == 0:
        found = graph.plain(zero.source)
        return Widened(source=value.source, zero=0, found=found, channels=value.channels, deferred=Unchanged(call=call))
    if zero.constant is None or zero.constant.size != 1:
        return None
    if zero.constant.ndim > len(shape_of(call.args[0])):
        return None
    total = value.zero + int(zero.constant.item())
    if not 0 <= total <= 255:  # padding is a byte that means zero
        return None
    return Widened(source=value.source, zero=total, channels=value.channels, deferred=Unchanged(call=call))


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take a matrix of bytes times constant weights that fit int8."""
    left, weight = (graph.look(argument) for argument in call.args)
    integers = _weights(left, weight, rank=2)
    narrow = None if integers is None else weights.to_int8_or_int16(graph.machine, integers.T)
    if narrow is None or not isinstance(left, Widened):
        return None
    shape = shape_of(call)
    symbolic = [axis for axis, extent in enumerate(shape) if not isinstance(extent, int)]
    if len(shape) < 2 or symbolic not in ([], [0]) or (symbolic and len(shape) > 2):
        return None
    return Value(deferred=Sums(inner=Product(**left.operands(graph, len(narrow)), weight=narrow.T, shape=shape)))


def convolve(graph: Graph, call: relax.Call) -> Value | None:
    """Take convolutions of bytes, over one axis or more, by constant weights that fit int8."""
    image, weight = (graph.look(argument) for argument in call.args)
    shape = shape_of(call.args[0])
    integers = _weights(image, weight, rank=len(shape))
    narrow = None if integers is None else weights.to_int8_or_int16(graph.machine, integers)
    strategy = None if narrow is None else _strategy(call, narrow, shape)
    if narrow is None or strategy is None or not isinstance(image, Widened):
        return None
    convolution = Convolution(**image.operands(graph, len(narrow)), weight=narrow, strategy=strategy)
    return Value(deferred=Sums(inner=convolution), channels=len(narrow))


def _strategy(call: relax.Call, kernel: Array, shape: tuple[Any, ...]) -> ConvStrategy | None:
    """Return how a kernel is moved over an image of ``shape``; None for channels last, and extents not known: those of
    an image of two axes may be symbolic."""
    layout, rank = LAYOUTS.get(len(shape)), len(shape)
    known = shape[1:2] if rank == 4 else shape[1:]
    if call.attrs.data_layout != layout or not all(isinstance(extent, int) for extent in known):
        return None
    if rank == 3:
        return Conv1d(inner=Conv2d(geometry=conv1d_geometry(call, kernel.shape)), shape=shape_of(call))
    return Conv2d(geometry=conv2d_geometry(call, kernel.shape)) if rank == 4 else over_volume(call, kernel)


LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
"""By the number of axes."""


def _weights(source: Value, weight: Value, *, rank: int) -> Array | None:
    """Return the constant beside ``source``, int32 of ``rank`` axes; None where it is another."""
    array = weight.constant
    if not isinstance(source, Widened) or array is None or array.ndim != rank or array.dtype != np.int32:
        return None
    return array


HANDLERS = {
    "relax.astype": widen,
    "relax.subtract": less_zero,
    "relax.matmul": multiply,
    **dict.fromkeys((f"relax.nn.conv{axes}d" for axes in (1, 2, 3)), convolve),
}
