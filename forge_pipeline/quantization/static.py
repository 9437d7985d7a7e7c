"""Static quantization: writes a plan into the model as QuantizeLinear and DequantizeLinear pairs.

Every value of the plan is followed by a pair that all its readers read behind, weights are integers behind a
DequantizeLinear (one scale per output channel), biases int32 in the scale of the accumulator. A Relu or Clip whose
bounds are those of the integer type is dropped: the saturation does its work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from forge_pipeline.errors import DataError
from forge_pipeline.quantization.dynamic import rebuild
from forge_pipeline.quantization.integers import Affine, IntegerType, activation_affine, around, quantize
from forge_pipeline.quantization.network import Network, at_opset, layer, opset
from forge_pipeline.quantization.plan import Plan
from forge_pipeline.quantization.weights import Constants, WeightScheme, channel_axis

BIAS_LIMIT = 2**31 - 1
NEGLIGIBLE = 2.0**-10  # what weights can add to a bias before it shows in 8 bits

ValueRanges = Mapping[str, tuple[float, float]]
IntegerCodes = Mapping[str, NDArray[np.int8]]
NEAREST: IntegerCodes = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """``symmetric``: activations have zero in the middle of their type; ``integer_bias``: biases are int32."""

    activation: IntegerType
    symmetric: bool
    integer_bias: bool
    weights: WeightScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """The rewritten model, the activations that saturation replaced, and layers with a widened weight scale.

    ``unfit`` are layers whose bias stays in float, as int32 cannot hold it; ``still`` the values that were one number
    in all samples, by that which stands for them.
    """

    model: ModelProto
    dropped: tuple[str, ...]
    widened: tuple[str, ...]
    unfit: tuple[str, ...]
    still: tuple[str, ...]


def quantize_static(
    network: Network, plan: Plan, value_ranges: ValueRanges, scheme: Scheme, codes: IntegerCodes = NEAREST
) -> Quantized:
    """Write ``plan`` into a copy of the network's model.

    ``value_ranges`` holds each scale's (min, max) by the value that stands for it; ``codes`` the integers of weights,
    by name, that are not to be rounded to the nearest. Raises DataError for an input that never varies.
    """
    writer = _Writer(network, plan, value_ranges, scheme, codes)
    return writer.write()


@dataclass(slots=True)
class _Writer:
    network: Network
    plan: Plan
    value_ranges: ValueRanges
    scheme: Scheme
    codes: IntegerCodes
    constants: Constants = field(default_factory=Constants)
    widened: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    still: list[str] = field(default_factory=list)

    def write(self) -> Quantized:
        affines = {leader: self._affine(leader) for leader in self.plan.groups()}
        activations = {name: affines[leader] for name, leader in self.plan.values.items()}
        dropped = self._droppable(activations)
        products = set(self.plan.products)
        for value in self.network.model.graph.input:
            if value.name in activations:
                self._pair(value.name, value.name)
        for source in self.network.nodes:
            output = source.output[0]
            if output in dropped:
                self._pair(output, dropped[output])
                continue
            node = NodeProto()
            node.CopyFrom(source)
            reads = source.input
            if layer(source) in products:
                self._weigh(node, activations)
            for index, name in enumerate(reads):
                if self.plan.reads_integers(source, name):
                    node.input[index] = f"{name}_dq"
            self.constants.nodes.append(node)
            for name in source.output:
                if name in activations:
                    self._pair(name, name)
        return Quantized(
            model=rebuild(self.network, self.constants), dropped=tuple(dropped), widened=tuple(self.widened),
            unfit=tuple(self.unfit), still=tuple(self.still),
        )  # fmt: skip

    def _affine(self, leader: str) -> Affine:
        low, high = self.value_ranges[leader]
        if not high > low:
            if any(value.name in self.plan.values and self.plan.values[value.name] == leader
                   for value in self.network.model.graph.input):  # fmt: skip
                raise DataError(
                    where=f"value {leader!r}",
                    expected="an activation that varies over the calibration samples",
                    found=f"the constant {low:g}",
                    fix="calibrate on representative samples, or keep its readers in float (quantize.keep_float)",
                )
            self.still.append(leader)
            low, high = around(low, self.scheme.activation, symmetric=self.scheme.symmetric)
        affine = activation_affine(low, high, self.scheme.activation, symmetric=self.scheme.symmetric)
        self.constants.tensors[f"{leader}_scale"], self.constants.tensors[f"{leader}_zero"] = affine.scale, affine.zero
        return affine

    def _pair(self, name: str, source: str) -> None:
        """Append `source -> QuantizeLinear -> DequantizeLinear`; readers of ``name`` read behind it."""
        leader = self.plan.values[name]
        parameters = [f"{leader}_scale", f"{leader}_zero"]
        self.constants.nodes.append(
            helper.make_node("QuantizeLinear", [source, *parameters], [f"{name}_q"], f"{name}_quantize")
        )
        self.constants.nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"], f"{name}_dequantize")
        )

    def _weigh(self, node: NodeProto, activations: Mapping[str, Affine]) -> None:
        """Point a product's constant operands at integers."""
        scheme = self.scheme.weights
        variables = [name for name in node.input[:2] if name in activations]
        for index in (0, 1):
            name = node.input[index]
            if name not in self.network.constants:
                continue
            axis = channel_axis(node, index, self.network) if scheme.per_channel else None
            weights = self.network.array(name)
            scale = narrow = scheme.scale(weights, axis)
            if len(node.input) > 2 and node.input[2] and self.scheme.integer_bias:
                scale = self._bias(node, weights, scale, axis, activations[variables[0]])
            codes = self.codes.get(name) if np.array_equal(scale, narrow) else None
            node.input[index] = self.constants.weight(name, weights, scale, axis, scheme, node.output[0], codes)

    def _bias(
        self,
        node: NodeProto,
        weights: NDArray[Any],
        scale: NDArray[np.float32],
        axis: int | None,
        activation: Affine,
    ) -> NDArray[np.float32]:
        """Store the bias in int32, in the accumulator's scale; return the weights' scale, widened where it must be.

        One that int32 cannot hold beside weights that still show stays in float.
        """
        bias = self.network.array(node.input[2])
        if bias.ndim > 1 and bias.size != bias.shape[-1]:
            return scale  # a Gemm's matrix of biases stays in float
        bias = bias.reshape(-1).astype(np.float64)
        groups = bias.size // scale.size if axis is not None and node.op_type == "ConvTranspose" else 1
        wide = np.tile(scale, groups) if axis is not None else scale
        needed = np.abs(bias) / (float(activation.scale) * BIAS_LIMIT)
        if (needed > wide).any():
            if self._show(node, weights, needed > wide, bias, axis, activation):
                self.unfit.append(layer(node))
                return scale
            room = np.asarray(needed * (1 + 2.0**-20), np.float32)
            room = room.reshape(groups, -1).max(axis=0) if axis is not None else room.max()
            scale = np.maximum(scale, room).astype(np.float32)
            wide = np.tile(scale, groups) if axis is not None else scale
            self.widened.append(layer(node))
        product = (wide * np.float32(activation.scale)).astype(np.float32)
        codes = np.clip(np.rint(bias / product.astype(np.float64)), -BIAS_LIMIT, BIAS_LIMIT).astype(np.int32)
        name = f"{node.output[0]}_bias"
        axis_of_bias = None if product.ndim == 0 else 0
        self.constants.dequantize(
            name, codes, Affine(scale=product, zero=np.zeros(product.shape, np.int32), axis=axis_of_bias)
        )
        node.input[2] = f"{name}_dq"
        return scale

    def _show(
        self,
        node: NodeProto,
        weights: NDArray[Any],
        over: NDArray[np.bool_],
        bias: NDArray[np.float64],
        axis: int | None,
        activation: Affine,
    ) -> bool:
        """Return whether a channel has weights that are not too small to show beside a bias that is over int32."""
        channels = weights.size // max(1, bias.size)
        if axis is not None and node.op_type != "ConvTranspose":
            reach = np.abs(np.moveaxis(weights, axis, 0).reshape(bias.size, -1)).sum(axis=1)
        else:
            reach = np.full(bias.size, float(np.abs(weights).max(initial=0.0)) * channels)
        reach = reach * float(activation.scale) * self.scheme.activation.levels
        return bool((over & (reach > np.abs(bias) * NEGLIGIBLE)).any())

    def _droppable(self, activations: Mapping[str, Affine]) -> dict[str, str]:
        """Return the Relu and Clip outputs that saturation computes, with what these nodes read."""
        found = {}
        for node in self.network.nodes:
            name = node.output[0]
            if name not in activations or name in self.network.outputs or node.op_type not in ("Relu", "Clip"):
                continue
            if any(name not in reader.input for reader in self.network.consumers.get(name, [])):
                continue  # a branch or the body of a loop reads it as it is
            bounds = _clip_bounds(node, self.network)
            if bounds is not None and node.input[0] not in activations:
                ends = quantize(np.array(bounds), activations[name], self.scheme.activation)
                if ends[0] == self.scheme.activation.low and ends[1] == self.scheme.activation.high:
                    found[name] = node.input[0]
        return found


def _clip_bounds(node: NodeProto, network: Network) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    bounds = [-np.inf, np.inf]
    for index in (1, 2):
        if len(node.input) > index and node.input[index]:
            if node.input[index] not in network.constants:
                return None
            bounds[index - 1] = float(network.array(node.input[index]).reshape(()))
    return bounds[0], bounds[1]


def ready(network: Network, scheme: Scheme) -> Network:
    """Return the network at an opset whose QuantizeLinear knows the scheme's types. Raises ModelError."""
    least = max(scheme.activation.opset, scheme.weights.kind.opset)
    return network if opset(network.model) >= least else Network(at_opset(network.model, least))
