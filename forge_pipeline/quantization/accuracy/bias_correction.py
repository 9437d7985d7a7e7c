"""Bias correction: rounding weights shifts a layer's mean output, and a constant shift belongs into the bias.

After M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), section
4.2, with the mean input of each channel measured on the probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization import cross_cpu_agreement
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.integers import Affine, dequantize, quantize
from forge_pipeline.quantization.network import Network, attribute, layer
from forge_pipeline.quantization.plan import Plan
from forge_pipeline.quantization.static import NEAREST, IntegerCodes
from forge_pipeline.quantization.weights import WeightScheme, channel_axis


def correct_bias(
    network: Network, plan: Plan, scheme: WeightScheme, probes: Sequence[Probe], codes: IntegerCodes = NEAREST
) -> Network | None:
    """Return the network with biases that cancel the mean error of the rounded weights; None where none has any.

    ``codes``: the integers of weights, by name, that are not rounded to the nearest.
    """
    products = set(plan.products)
    nodes = [
        node
        for node in network.nodes
        if layer(node) in products and node.op_type in ("Conv", "Gemm") and not attribute(node, "transA", 0)
    ]
    if not nodes:
        return None
    means = _means(network, nodes, probes)
    arrays: dict[str, NDArray[Any]] = {}
    inputs: dict[str, list[str]] = {}
    for node in nodes:
        shift = _shift(network, node, means[node.input[0]], scheme, codes)
        old = node.input[2] if len(node.input) > 2 else ""
        bias = network.array(old) if old else np.zeros(shift.shape, np.float32)
        if bias.shape not in (shift.shape, (1, *shift.shape)):
            continue
        name = f"{node.output[0]}_corrected"
        arrays[name] = (bias + shift).astype(np.float32)
        inputs[node.output[0]] = [node.input[0], node.input[1], name]
    return network.with_arrays(arrays, inputs)


def _means(network: Network, nodes: Sequence[NodeProto], probes: Sequence[Probe]) -> dict[str, NDArray[np.float64]]:
    """The mean of each channel of the nodes' inputs."""
    axes = {node.input[0]: 1 if node.op_type == "Conv" else -1 for node in nodes}
    fed = {value.name for value in network.model.graph.input}
    computed = tuple(name for name in axes if name not in fed)
    run = Interpreter(network.model, taps=computed, optimized=True)
    sums: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(axes, 0)
    for probe in probes:
        values = {**probe.feed, **run(probe.feed, computed)}
        for name, axis in axes.items():
            channels = np.moveaxis(values[name], axis, 0).astype(np.float64)
            channels = channels.reshape(channels.shape[0], -1)
            sums[name] = sums.get(name, 0.0) + channels.sum(axis=1)
            counts[name] += channels.shape[1]
    return {name: cross_cpu_agreement.means(total / max(counts[name], 1)) for name, total in sums.items()}


def _shift(
    network: Network, node: NodeProto, mean: NDArray[np.float64], scheme: WeightScheme, known: IntegerCodes
) -> NDArray[np.float64]:
    """What the layer's mean output loses to rounding, per output channel."""
    weights = network.array(node.input[1])
    axis = channel_axis(node, 1, network) if scheme.per_channel else None
    scale = scheme.scale(weights, axis)
    affine = Affine(scale=scale, zero=np.zeros(scale.shape, np.int8), axis=axis)
    nearest = np.clip(quantize(weights, affine, scheme.signed), -scheme.limit, scheme.limit)
    codes = known.get(node.input[1], nearest)
    lost = weights.astype(np.float64) - dequantize(codes, affine)
    if node.op_type == "Gemm":
        # not `@`: which kernel BLAS takes, and so the last bit, depends on the CPU
        shift: NDArray[np.float64] = (
            (lost * mean).sum(axis=1) if attribute(node, "transB", 0) else (mean[:, None] * lost).sum(axis=0)
        )
        return shift
    kernel = lost.reshape(*lost.shape[:2], -1).sum(axis=2)  # [out, in of the group]
    groups = attribute(node, "group", 1)
    inputs = mean.reshape(groups, -1).repeat(kernel.shape[0] // groups, axis=0)
    return (kernel * inputs).sum(axis=1)  # type: ignore[no-any-return]
