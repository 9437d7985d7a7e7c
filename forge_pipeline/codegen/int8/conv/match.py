"""Convolutions of int8 whose results are deferred, over any axes; those over one and two axes themselves.

What is known about the numbers (``Convolution``) is apart from how the kernel is moved over axes (``ConvStrategy``):
every strategy ends in convolutions of images, for which ``convolution`` has the algorithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from tvm import relax

from forge_pipeline.codegen.float32.conv.geometry import Geometry, conv1d_geometry, conv2d_geometry
from forge_pipeline.codegen.int8 import dynamic_quantize, weights
from forge_pipeline.codegen.int8.algorithm import first_result
from forge_pipeline.codegen.int8.conv import depthwise
from forge_pipeline.codegen.int8.conv.convolution import ALGORITHMS
from forge_pipeline.codegen.int8.deferred_sums import DeferredSums, quantized_operands
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.layout.affine import Affine, Clip
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.layout.quantized_values import (
    deferred_result,
)
from forge_pipeline.codegen.layout.rows import as_shape, image_of
from forge_pipeline.codegen.layout.symbolic_cast import Named
from forge_pipeline.codegen.tir.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(DeferredSums):
    """A convolution of integers; ``weight`` is (filters, channels / groups, *kernel)."""

    strategy: ConvStrategy

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return int(self.weight.shape[0])

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        return self.strategy.emit(graph, self, affine)

    def largest(self, machine: Machine) -> float:
        """Return the most that a result can be, in real units."""
        if self.dynamic is not None:
            return float("inf")
        sums = self.weight.astype(np.int64).sum(axis=tuple(range(1, self.weight.ndim)))
        return float(self.epilogue(machine, None, sums).largest(self.weight).max(initial=0))

    def of_filters(self, weight: Array, rows: Array) -> Convolution:
        """Return one with the ``weight`` of other filters, that have scale and bias of those in ``rows``."""
        return replace(
            self,
            weight=weight,
            scale=self.scale[rows],
            bias=self.bias[rows],
            float_bias=None if self.float_bias is None else self.float_bias[rows],
        )


class ConvStrategy(Protocol):
    """How a kernel is moved over its axes."""

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Emit the convolution, in uint8 as ``affine`` says or in float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A convolution over an image as kernels take it: weights that fit their instructions, the zero point in biases."""

    source: Value
    zero: int
    weight: Array
    geometry: Geometry
    epilogue: Epilogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d:
    """Over an image."""

    geometry: Geometry

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Emit it; the result is blocked."""
        part = self.prepared(graph, convolution, affine)
        epilogue = part.epilogue.with_bounds(graph.machine, part.weight)
        blocked = first_result(ALGORITHMS, graph, part.source, part.zero, part.weight, part.geometry, epilogue)
        return Value(blocked=blocked, channels=part.geometry.filters)

    def prepared(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Prepared:
        """Return what a kernel of the convolution takes."""
        epilogue = convolution.epilogue(graph.machine, affine, convolution.weight.astype(np.int64).sum(axis=(1, 2, 3)))
        source, geometry = convolution.source, self.geometry
        if convolution.dynamic is not None:
            source, geometry = dynamic_quantize.pad_image(graph, source, convolution.dynamic, geometry)
        by_rows = depthwise.takes(geometry)
        weight, times = weights.split_into_parts(graph.machine, convolution.weight, axis=2 if by_rows else 1)
        if times > 1 and not by_rows:
            source = weights.channels_again(graph, source, times, geometry.groups)
            geometry = replace(geometry, channels=geometry.channels * times)
        return Prepared(source=source, zero=convolution.zero, weight=weight, geometry=geometry, epilogue=epilogue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv1d:
    """Over one axis, as over an image with one row: by the strategy ``inner``; ``shape`` is that of the result."""

    inner: ConvStrategy
    shape: tuple[Any, ...]

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Emit it; the result is known as an image too."""
        row = image_of(graph, convolution.source)
        flat = replace(convolution, source=row, weight=convolution.weight[:, :, None], strategy=self.inner)
        return as_shape(self.inner.emit(graph, flat, affine), self.shape)


def by_filter(weight: Array) -> Array:
    """Return the weights of a convolution, which has its filters first already."""
    return weight


def convolution_of(
    graph: Graph, call: relax.Call, strategy: ConvStrategy, arrange: Callable[[Array], Array] = by_filter
) -> Value | None:
    """Return a convolution of a dequantized value by dequantized weights that fit int8; None for others.

    ``arrange`` brings weights, as the operator has them, to filters first.
    """
    operands = quantized_operands(graph, call, arrange)
    if operands is None:
        return None
    return Value(deferred=Convolution(**operands, strategy=strategy), channels=operands["scale"].size)


def conv2d(graph: Graph, call: relax.Call) -> Value | None:
    """Take convolutions over images; batch, height and width may be symbolic."""
    kernel = graph.look(call.args[1]).constant
    if kernel is None or call.attrs.data_layout != "NCHW":
        return None
    if not has_known_shape(call.args[0], rank=4, symbolic_axes=(0, 2, 3)):
        return None
    return convolution_of(graph, call, Conv2d(geometry=conv2d_geometry(call, kernel.shape)))


def conv1d(graph: Graph, call: relax.Call) -> Value | None:
    """Take convolutions over one axis; batch and length may be symbolic."""
    kernel = graph.look(call.args[1]).constant
    if (
        kernel is None
        or call.attrs.data_layout != "NCW"
        or not has_known_shape(call.args[0], rank=3, symbolic_axes=(0, 2))
    ):
        return None
    return convolution_of(
        graph, call, Conv1d(inner=Conv2d(geometry=conv1d_geometry(call, kernel.shape)), shape=shape_of(call))
    )


def add_bias(graph: Graph, call: relax.Call) -> Value | None:
    """Start sums at a constant for each filter: exactly, if it is stored in their unit."""
    for image, other in (call.args, reversed(call.args)):
        deferred, term = deferred_result(graph, image), graph.look(other)
        sums = deferred.inner if isinstance(deferred, Named) else deferred
        if not isinstance(sums, Convolution) or term.constant is None or deferred is None or deferred.clip != Clip():
            continue
        filters, ones = sums.filters, (1,) * (sums.weight.ndim - 2)
        if term.constant.shape not in ((1, filters, *ones), (filters, *ones)) or sums.float_bias is not None:
            continue
        done = sums.with_constant(term)
        return Value(deferred=replace(deferred, inner=done) if isinstance(deferred, Named) else done, channels=filters)
    return None


HANDLERS = {"relax.nn.conv1d": conv1d, "relax.nn.conv2d": conv2d, "relax.add": add_bias}
