"""From int32 sums to results, as ONNX Runtime's integer kernels have it: one float32 factor for each channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.int8.isa.table import instruction_set
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip, DynamicAffine, clipped_float, rounded, stored
from forge_pipeline.codegen.layout.builder import Array, Graph
from forge_pipeline.codegen.tir.machine import Machine

RESULT_LIMIT = 1 << 30
"""Size of a result in steps from which on its conversion to int32 might have no room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """From sums to results: ``(sum + bias) * factor``, then stored as ``affine`` says, or left in float.

    ``factor`` holds a float32 for each channel, ``bias`` an int32, ``float_bias`` a float32 that is added last.
    ``raw``: the result is ``sum + bias``, an int32.
    ``bounded``: results are known to fit int32 before they are clipped, and the CPU packs vectors of them.
    """

    factor: Array
    bias: Array
    float_bias: Array | None
    affine: Affine | None
    clip: Clip
    dynamic: DynamicAffine | None = None
    raw: bool = False
    bounded: bool = False

    @classmethod
    def of(cls, scale: Array, bias: Array, float_bias: Array | None, affine: Affine | None, clip: Clip) -> Epilogue:
        """Return it for sums in units of ``scale``, and a bias in real units."""
        factor = scale.astype(np.float32)
        if affine is not None:
            unit = np.float32(affine.scale)
            factor, float_bias = factor / unit, None if float_bias is None else float_bias / unit
        return cls(factor=factor, bias=bias, float_bias=float_bias, affine=affine, clip=clip)

    def with_bounds(self, machine: Machine, weight: Array) -> Epilogue:
        """Return it for sums of bytes times ``weight`` (channels, ...), ``bounded`` where that can be told."""
        if self.dynamic is not None or self.affine is None or not instruction_set(machine).packs:
            return self
        return replace(self, bounded=bool((self.largest(weight) < RESULT_LIMIT).all()))

    def largest(self, weight: Array) -> Array:
        """Return the most that results of bytes times ``weight`` (channels, ...) can be, for each channel."""
        integers = weight.reshape(len(weight), -1).astype(np.int64)
        ends = [LEVELS * part.sum(axis=1) + self.bias for part in (np.minimum(integers, 0), np.maximum(integers, 0))]
        most: Array = np.maximum(*(abs(end) for end in ends)) * self.factor.astype(np.float64)
        return most if self.float_bias is None else most + abs(self.float_bias)

    def constants(self, graph: Graph, shape: tuple[int, ...]) -> list[relax.Expr]:
        """Return its constants as arguments of a kernel, each of ``shape``: zero for channels that are only there."""
        arrays = [self.bias.astype(np.int32), self.factor.astype(np.float32)]
        if self.float_bias is not None:
            arrays.append(self.float_bias.astype(np.float32))
        constants = [graph.constant(_fill(array, shape)) for array in arrays]
        if self.dynamic is not None:
            scale, zero = self.dynamic.scale, self.dynamic.zero
            sums = graph.constant(_fill(self.dynamic.sums, shape))
            constants[0] = graph.kernel(_less_zero, constants[0], sums, zero, name="measured_bias")
            if not self.raw:
                constants[1] = graph.kernel(_times_scale, constants[1], scale, name="measured_factor")
        return constants

    def result(
        self, total: tirx.PrimExpr, bias: tirx.PrimExpr, factor: tirx.PrimExpr, *float_bias: Any
    ) -> tirx.PrimExpr:
        """Return the result's expression; a float is rounded, whatever is fused with it."""
        if self.raw:
            return total + bias
        value = self.real(total, bias, factor, *float_bias)
        if self.affine is not None:
            return stored(value, self.affine, self.clip)
        return rounded(clipped_float(value, self.clip))

    def real(self, total: tirx.PrimExpr, bias: tirx.PrimExpr, factor: tirx.PrimExpr, *float_bias: Any) -> tirx.PrimExpr:
        """Return the expression of a result before it is rounded; a float's offset is added to a rounded product."""
        value = (total + bias).astype("float32") * factor
        if not float_bias:
            return value
        return (rounded(value) if self.affine is None else value) + float_bias[0]


def _fill(array: Array, shape: tuple[int, ...]) -> Array:
    full = np.zeros(shape, array.dtype)
    full.reshape(-1)[: array.size] = array
    return full


def _less_zero(bias: te.Tensor, sums: te.Tensor, zero: te.Tensor) -> te.Tensor:
    return te.compute(bias.shape, lambda *at: bias(*at) - zero().astype("int32") * sums(*at), name="quantize_bias")


def _times_scale(factor: te.Tensor, scale: te.Tensor) -> te.Tensor:
    return te.compute(factor.shape, lambda *at: factor(*at) * scale(), name="quantize_factor")


def to_float_if_needed(affine: Affine | None) -> str:
    """Return the dtype of a result."""
    return "float32" if affine is None else "uint8"
