"""Convolution as the graph has it: what surrounds it is folded into its weights, then an algorithm is chosen.

A convolution is deferred until somebody reads its result. Meanwhile batch normalization and constant sums are
folded into weights and bias, so none of the algorithms knows about them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from tvm import relax

from forge_pipeline.codegen.amx import bfloat16 as bfloat16_amx
from forge_pipeline.codegen.float32.conv import channels_last, depthwise, dilated, direct
from forge_pipeline.codegen.float32.conv.computed_weights import weights_of
from forge_pipeline.codegen.float32.conv.geometry import Geometry, conv1d_geometry, conv2d_geometry
from forge_pipeline.codegen.float32.conv.winograd import fixed_size as winograd
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value, dtype_of, has_known_shape, shape_of
from forge_pipeline.codegen.layout.rows import as_shape, image_of

ALGORITHMS = (channels_last, depthwise, bfloat16_amx, dilated, winograd, direct)
"""Asked in this order for a value; `direct` takes what the others leave."""

OF_COMPUTED = (depthwise, direct)
"""Those of them that do nothing to weights but pack them."""


@runtime_checkable
class Linear(Protocol):
    """A deferred value that is linear in ``weight`` (filters first): factors and terms of its filters fold into it."""

    @property
    def weight(self) -> Array:
        """Weights, filters first."""

    @property
    def filters(self) -> int:
        """Channels of the result."""

    def scaled(self, scale: Array, shift: Array) -> Linear:
        """Return it followed by ``* scale + shift`` for each filter."""

    def emit(self, graph: Graph) -> Value:
        """Emit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution that is not emitted yet: ``weight`` (filters, channels / groups, height, width) and ``bias``.

    ``kind`` is the type that it is computed in. ``stored`` takes weights that are computed when they are packed;
    they are not scaled.
    """

    source: Value
    weight: Array
    bias: Array | None
    geometry: Geometry
    kind: str = "float32"
    stored: Stored | None = None

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return self.geometry.filters

    def scaled(self, scale: Array, shift: Array) -> Convolution:
        """Return the convolution followed by ``* scale + shift`` for each filter."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return replace(self, weight=self.weight * scale.reshape(-1, 1, 1, 1), bias=bias)

    def emit(self, graph: Graph) -> Value:
        """Emit the algorithm that takes it, and the bias."""
        geometry, weight = self.geometry, self.weight.astype(self.kind, copy=False)
        if self.stored is not None:
            found = (of.emit(graph, self.source, weight, geometry, self.stored) for of in OF_COMPUTED)
        else:
            found = (of.emit(graph, self.source, weight, geometry) for of in ALGORITHMS)
        blocked = next(result for result in found if result is not None)
        if self.bias is not None:
            bias = graph.per_channel(self.bias.astype(self.kind).reshape(1, -1, 1, 1), geometry.filters)
            blocked = graph.emit(relax.op.add(blocked, bias))
        return Value(blocked=blocked, channels=geometry.filters)


def conv2d(graph: Graph, call: relax.Call) -> Value | None:
    """Take every convolution with weights of known sizes; batch, height and width may be symbolic."""
    found = weights_of(graph, call.args[1], rank=4)
    if call.attrs.data_layout != "NCHW" or not has_known_shape(call.args[0], rank=4, symbolic_axes=(0, 2, 3)):
        return None
    if found is None:
        return None
    return _deferred(graph, graph.look(call.args[0]), found, conv2d_geometry(call, found[0].shape), call)


def _deferred(
    graph: Graph, source: Value, found: tuple[Array, Stored | None], geometry: Geometry, call: relax.Call
) -> Value:
    """Return a convolution that waits for what is folded into its weights, where these are constant."""
    weight, stored = found
    made = Convolution(
        source=source, weight=weight, bias=None, geometry=geometry, kind=dtype_of(call.args[0]), stored=stored
    )
    return Value(deferred=made, channels=geometry.filters) if stored is None else made.emit(graph)


def conv1d(graph: Graph, call: relax.Call) -> Value | None:
    """Take every convolution over one axis as one over two, the first of extent 1."""
    found = weights_of(graph, call.args[1], rank=3)
    if call.attrs.data_layout != "NCW" or not has_known_shape(call.args[0], rank=3, symbolic_axes=(0, 2)):
        return None
    if found is None:
        return None
    weight, stored = found
    image, geometry = image_of(graph, graph.look(call.args[0])), conv1d_geometry(call, weight.shape)
    return as_shape(_deferred(graph, image, (weight[:, :, None], stored), geometry, call), shape_of(call))


def batch_norm(graph: Graph, call: relax.Call) -> Value | None:
    """Fold it into the convolution before it, if nothing else reads that; else multiply and add."""
    value = graph.look(call.args[0])
    constants = [graph.look(argument).constant for argument in call.args[1:5]]
    if any(constant is None for constant in constants) or int(call.attrs.axis) != 1:
        return None
    gamma, beta, mean, variance = (np.asarray(constant, np.float64) for constant in constants)
    scale = gamma / np.sqrt(variance + float(call.attrs.epsilon))
    shift = beta - mean * scale
    if isinstance(value.deferred, Linear) and graph.is_used_once(call.args[0]):
        return Value(
            parts=(Value(deferred=value.deferred.scaled(scale, shift), channels=value.channels), Value(), Value())
        )
    rank = len(shape_of(call.args[0]))
    kind = dtype_of(call.args[0])
    factors = [array.astype(kind).reshape(1, -1, *[1] * (rank - 2)) for array in (scale, shift)]
    if graph.is_blocked(value):
        factor, term = (graph.per_channel(array, value.channels) for array in factors)
        product = graph.emit(relax.op.multiply(value.blocked, factor))
        result = Value(blocked=graph.emit(relax.op.add(product, term)), channels=value.channels)
    else:
        product = graph.emit(relax.op.multiply(graph.plain(value), graph.constant(factors[0])))
        result = Value(plain=graph.emit(relax.op.add(product, graph.constant(factors[1]))))
    return Value(parts=(result, Value(), Value()))


def add_bias(graph: Graph, call: relax.Call) -> Value | None:
    """Fold a constant for each filter into the convolution that it is added to."""
    for image, other in (call.args, reversed(call.args)):
        value, constant = graph.look(image), graph.look(other).constant
        if constant is None or not isinstance(value.deferred, Linear) or not graph.is_used_once(image):
            continue
        filters, ones = value.deferred.filters, (1,) * (value.deferred.weight.ndim - 2)
        if constant.shape in ((1, filters, *ones), (filters, *ones)):
            folded = value.deferred.scaled(np.ones(filters), constant.ravel().astype(np.float64))
            return Value(deferred=folded, channels=filters)
    return None


HANDLERS = {
    "relax.nn.conv1d": conv1d,
    "relax.nn.conv2d": conv2d,
    "relax.nn.batch_norm": batch_norm,
    "relax.add": add_bias,
}
