"""Sums of a product or a convolution of int8, deferred: what is added to them, clips or stores them is folded in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from tvm import relax

from forge_pipeline.codegen.int8 import weights
from forge_pipeline.codegen.int8.isa.table import dot_product, has_dot_product
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.layout.affine import SUM_LIMIT, Affine, Clip, DynamicAffine
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.layout.quantized_values import (
    DeferredKernel,
    Dequantized,
    DynamicallyQuantized,
    IntegerWeight,
)
from forge_pipeline.codegen.tir.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredSums(DeferredKernel):
    """Sums of bytes with zero point ``zero`` times ``weight``, which is as ``weights`` holds it.

    They are in units of ``scale``, one for each channel, and start at ``bias``; ``float_bias`` is added to results in
    real units. ``raw``: the results are the sums.
    """

    source: Value
    zero: int
    weight: Array
    scale: Array
    bias: Array
    float_bias: Array | None = None
    clip: Clip = field(default_factory=Clip)
    dynamic: DynamicallyQuantized | None = None
    raw: bool = False

    def epilogue(self, machine: Machine, affine: Affine | None, weight_sums: Array) -> Epilogue:
        """Return what becomes of sums; ``weight_sums`` of each channel take the zero point from them."""
        bias = self.bias - (self.zero - dot_product(machine).activation_offset) * weight_sums
        found = replace(Epilogue.of(self.scale, bias, self.float_bias, affine, self.clip), raw=self.raw)
        if self.dynamic is None:
            return found
        scale, zero = self.dynamic.scale, self.dynamic.zero
        return replace(found, dynamic=DynamicAffine(scale=scale, zero=zero, sums=weight_sums.astype(np.int32)))

    def with_constant(self, term: Value) -> Self:
        """Return sums that start at a constant for each channel, if they have its unit; else results get it added."""
        exact = _integer_bias(term, self.scale) if self.dynamic is None else None
        if exact is not None and not self.bias.any():
            return replace(self, bias=exact)
        return replace(self, float_bias=np.asarray(term.constant).reshape(-1))


def _integer_bias(term: Value, scale: Array) -> Array | None:
    """Return a constant in units of ``scale``, if it is stored so and int32 sums have room for it."""
    if not isinstance(term, IntegerWeight) or abs(term.integers).max(initial=0) >= SUM_LIMIT:
        return None
    if not np.allclose(term.scale, scale, rtol=1e-5, atol=0):
        return None
    return np.broadcast_to(term.integers.reshape(-1), scale.shape).astype(np.int64)


def quantized_operands(graph: Graph, call: relax.Call, arrange: Callable[[Array], Array]) -> dict[str, Any] | None:
    """Return the fields of ``DeferredSums`` for a dequantized value and weights; None where no kernel takes them.

    ``arrange`` brings weights, as the operator has them, to filters first.
    """
    source, weight = (graph.look(argument) for argument in call.args)
    if not has_dot_product(graph.machine) or not isinstance(weight, IntegerWeight):
        return None
    if not isinstance(source, Dequantized | DynamicallyQuantized) or not (weight.scale > 0).all():
        return None
    integers, spread = weight.integers, [1] * weight.integers.ndim
    narrow = weights.to_int8_or_int16(graph.machine, arrange(integers))
    if narrow is None:
        return None
    if weight.scale.size > 1:
        spread[weight.axis] = -1
    scales = arrange(np.broadcast_to(weight.scale.reshape(spread), integers.shape))
    scales = scales.reshape(scales.shape[0], -1)
    if not scales.size or (scales != scales[:, :1]).any():
        return None
    affine = source.affine if isinstance(source, Dequantized) else Affine(scale=1.0, zero=0)
    return {
        "source": source.source, "zero": affine.zero, "weight": narrow, "bias": np.zeros(len(scales), np.int64),
        "scale": (np.float32(affine.scale) * scales[:, 0]).astype(np.float32),
        "dynamic": source if isinstance(source, DynamicallyQuantized) else None,
    }  # fmt: skip
