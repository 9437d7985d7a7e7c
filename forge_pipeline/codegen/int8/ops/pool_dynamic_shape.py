"""Pooling of bytes over images whose height and width are known only when they run, with the templates of ``pool``.

How many pixels a mean is taken over is worked out where it is stored, in float32 as ``int8_pool`` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.float32 import pool
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.affine import Affine, Clip
from forge_pipeline.codegen.layout.builder import Graph, Value
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, Dequantized, dequantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(DeferredKernel):
    """Means as a ``DeferredResult``; ``attributes`` are those of the windows, None for one whole
    image each."""

    source: Value
    affine: Affine
    attributes: Any
    clip: Clip

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        result = graph.kernel(
            average, graph.blocked(self.source), name="average_u8", attributes=self.attributes, before=self.affine,
            after=affine, clip=self.clip,
        )  # fmt: skip
        if self.attributes is not None:
            result = pool.require_pixels(graph, result, self.attributes)
        return Value(blocked=result, channels=self.source.channels)


def window(graph: Graph, value: Dequantized, call: relax.Call) -> Value:
    """Pool windows."""
    if call.op.name == "relax.nn.max_pool2d":
        image = graph.blocked(value.source)
        largest = graph.kernel(pool.maximum, image, name="max_u8", attributes=call.attrs)
        largest = pool.require_pixels(graph, largest, call.attrs)
        return dequantized(Value(blocked=largest, channels=value.source.channels), value.affine)
    return Value(deferred=Mean(source=value.source, affine=value.affine, attributes=call.attrs, clip=Clip()))


def whole(graph: Graph, value: Dequantized, call: relax.Call) -> Value:
    """Average whole images, or find the largest."""
    if call.op.name == "relax.max":
        largest = graph.kernel(pool.global_maximum, graph.blocked(value.source), name="max_u8")
        return dequantized(Value(blocked=largest, channels=value.source.channels), value.affine)
    return Value(deferred=Mean(source=value.source, affine=value.affine, attributes=None, clip=Clip()))


def average(image: te.Tensor, attributes: Any, before: Affine, after: Affine | None, clip: Clip) -> te.Tensor:
    """Describe means of a blocked image."""
    widened = te.compute(image.shape, lambda *at: image(*at).astype("int32") - before.zero, name="widen")
    epilogue = Epilogue.of(np.ones(1), np.zeros(1), None, after, clip)
    one, scale = tirx.const(1.0, "float32"), tirx.const(before.scale, "float32")
    if attributes is None:
        total = pool.reduce_pixels(widened, te.sum)
        pixels = image.shape[2] * image.shape[3]

        def share(_h: Any, _w: Any) -> Any:
            return one / pixels.astype("float32")

    else:
        total, share = pool.pool_windows(widened, attributes, tirx.const(0, "int32"), te.sum)
    zero, unit = tirx.const(0, "int32"), tirx.const(1.0 if after is None else after.scale, "float32")

    def result(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        factor = scale * share(h, w)
        return epilogue.result(total(n, block, h, w, lane), zero, factor if after is None else factor / unit)

    return te.compute(total.shape, result, name=f"finish_{to_float_if_needed(after)}")
