"""Equalization: a channel that is large in the activations and small in the next weights shares the burden with them.

Where a layer's output channels pass nothing but positively homogeneous operators on their way to the next layers,
dividing channel i of the one and multiplying column i of the others by s_i > 0 leaves the network's function as it
is. After M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), and,
with a LayerNormalization in the place of the first layer, G. Xiao et al., "SmoothQuant" (ICML 2023): s_i is
a_i^alpha / w_i^(1 - alpha) with the largest activation a_i and weight w_i of the channel, and alpha 1/2; it is a_i
where the weights of a channel have a scale of their own (depthwise), so that they bear any factor. Where one scale
serves all weights of the first layer, its largest weight of the channel takes the place of a_i, as in the former.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.cross_cpu_agreement import rescaling
from forge_pipeline.quantization.network import Network, attribute

HOMOGENEOUS = frozenset({"AveragePool", "Dropout", "GlobalAveragePool", "Identity", "LeakyRelu", "MaxPool", "Relu"})
SWEEPS = 20  # one link changes the weights that the next one looks at: to convergence
LIMIT = 2.0**12  # factors beyond this would only trade one extreme for another

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Values ``divided`` (constant, axis of the channel) and ``multiplied`` when channels of ``value`` are rescaled.

    ``axis``: the channel axis of ``value``; ``free``: the readers' weights have a scale for each such channel;
    ``matrix``: the weights that make the channels, where one scale has to serve all of them.
    """

    value: str
    axis: int
    divided: tuple[tuple[str, int], ...]
    multiplied: tuple[tuple[str, int], ...]
    free: bool
    matrix: tuple[str, int] | None


def equalize(network: Network, probes: Sequence[Probe], *, per_channel: bool) -> Network | None:
    """Return a network of the same function with its channels equalized; None where there is nothing to equalize."""
    found = links(network, per_channel=per_channel)
    if not found:
        return None
    largest = _largest(network, found, probes)
    arrays: Arrays = {
        name: network.array(name).astype(np.float64) for link in found for name, _ in (*link.divided, *link.multiplied)
    }
    scaled, factors = dict(arrays), {link.value: np.ones_like(largest[link.value]) for link in found}
    for _ in range(SWEEPS):
        for link in found:
            factor = _factor(link, largest[link.value], scaled)
            largest[link.value] = largest[link.value] / factor
            factors[link.value] = factors[link.value] * factor
            _rescale(scaled, link, factor)
    for link in found:
        _rescale(arrays, link, rescaling(factors[link.value]))
    return network.with_arrays({name: array.astype(np.float32) for name, array in arrays.items()})


def links(network: Network, *, per_channel: bool) -> tuple[Link, ...]:
    """Return the values whose channels may be rescaled, in order."""
    found = []
    for value in dict.fromkeys(name for node in network.nodes for name in node.output):
        link = _link(network, value, per_channel=per_channel)
        if link is not None:
            found.append(link)
    return tuple(found)


def _link(network: Network, value: str, *, per_channel: bool) -> Link | None:
    readers = network.consumers.get(value, [])
    if not readers or value in network.outputs or value not in network.floats:
        return None
    columns = [_columns(network, reader, value) for reader in readers]
    if any(column is None for column in columns):
        return None
    kept = [column for column in columns if column is not None]
    axes = {1 if reader.op_type == "Conv" else -1 for reader in readers}
    rows = _rows(network, value, next(iter(axes)) == 1)
    if len(axes) > 1 or rows is None:
        return None
    matrices = [(name, axis) for name, axis in rows if network.array(name).ndim > 1]
    return Link(
        value=value,
        axis=next(iter(axes)),
        divided=rows,
        multiplied=tuple((name, axis) for name, axis, _ in kept),
        free=per_channel and all(own for _, _, own in kept),
        matrix=matrices[0] if matrices and not per_channel else None,
    )


def _columns(network: Network, node: NodeProto, value: str) -> tuple[str, int, bool] | None:
    """The weight of a reader, its axis over input channels, and whether each of these has its own scale."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or list(node.input).count(value) != 1 or node.input[0] != value:
        return None
    name = node.input[1]
    if not _own(network, name):
        return None
    shape = network.array(name).shape
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        if groups == 1:
            return name, 1, False
        return (name, 0, True) if shape[1] == 1 and groups == shape[0] else None
    if node.op_type == "Gemm":
        return None if attribute(node, "transA", 0) else (name, 1 if attribute(node, "transB", 0) else 0, False)
    return (name, 0, False) if len(shape) == 2 else None


def _rows(network: Network, value: str, spatial: bool) -> tuple[tuple[str, int], ...] | None:
    """The constants to divide, found upwards from ``value``: those of the layer that makes its channels."""
    divided: list[tuple[str, int]] = []
    name = value
    while True:
        node = network.producer.get(name)
        if node is None or (name != value and len(network.consumers[name]) > 1) or name in network.outputs:
            return None
        if node.op_type in HOMOGENEOUS and (spatial or node.op_type not in ("AveragePool", "MaxPool")):
            if node.op_type == "LeakyRelu" and attribute(node, "alpha", 0.01) < 0:
                return None
            name = node.input[0]
            continue
        if node.op_type == "Add" and not spatial:
            constants = [item for item in node.input if item in network.constants]
            if len(constants) != 1 or not _own(network, constants[0]) or network.array(constants[0]).ndim != 1:
                return None
            divided.append((constants[0], 0))
            name = next(item for item in node.input if item not in network.constants)
            continue
        made = _made(network, node, spatial)
        return None if made is None else (*divided, *made)


def _made(network: Network, node: NodeProto, spatial: bool) -> tuple[tuple[str, int], ...] | None:
    """The constants of the node that makes the channels, with their axes over output channels."""
    constants = [item for item in node.input[1:] if item]
    if node.op_type in ("Conv", "ConvTranspose") and spatial:
        grouped = node.op_type == "ConvTranspose" and attribute(node, "group", 1) != 1
        axes = None if grouped else [0 if node.op_type == "Conv" else 1, 0]
    elif node.op_type == "Gemm" and not spatial:
        axes = [0 if attribute(node, "transB", 0) else 1, -1]
    elif node.op_type == "MatMul" and not spatial and node.input[0] not in network.constants:
        axes = [-1]
    elif node.op_type == "LayerNormalization" and not spatial and attribute(node, "axis", -1) == -1:
        axes = [0, 0]
    else:
        axes = None
    if axes is None or not all(_own(network, name) for name in constants):
        return None
    pairs = tuple(zip(constants, axes, strict=False))
    channels = {network.array(name).shape[axis] if network.array(name).ndim else 0 for name, axis in pairs}
    return pairs if len(channels) == 1 and channels != {1} else None


def _own(network: Network, name: str) -> bool:
    """True for a float constant that a single node reads, once."""
    readers = network.consumers.get(name, [])
    return (
        name in network.constants
        and len(readers) == 1
        and list(readers[0].input).count(name) == 1
        and name not in network.outputs
        and network.array(name).dtype == np.float32
    )


def _largest(network: Network, found: Sequence[Link], probes: Sequence[Probe]) -> Arrays:
    """The largest magnitude in each channel of each value, over the probes."""
    names = tuple(link.value for link in found)
    run = Interpreter(network.model, taps=names, optimized=True)
    largest: Arrays = {}
    for probe in probes:
        values = run(probe.feed, names)
        for link in found:
            array = np.moveaxis(np.abs(values[link.value]), link.axis, 0)
            peak = array.reshape(array.shape[0], -1).max(axis=1, initial=0.0).astype(np.float64)
            largest[link.value] = np.maximum(largest.get(link.value, 0.0), peak)
    return largest


def _factor(link: Link, activation: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    weights = _peaks(link.multiplied, arrays)
    alive = (activation > 0) & (weights > 0)
    factor = np.ones_like(activation)
    if not alive.any():
        return factor
    burden = activation if link.matrix is None else _peaks([link.matrix], arrays)
    alive &= burden > 0
    factor[alive] = burden[alive] if link.free else np.sqrt(burden[alive] / weights[alive])
    factor[alive] /= _mean(factor[alive])
    # a channel that never speaks must not set the scale of the weights on either side: those decide about it
    rows = _peaks(link.divided, arrays)
    known = alive & (rows > 0)
    silent = (activation == 0) & (weights > 0) & (rows > 0)
    if known.any():
        factor[silent] = np.sqrt(rows[silent] / weights[silent]) / _mean(np.sqrt(rows[known] / weights[known]))
    clipped: NDArray[Any] = np.clip(factor, 1 / LIMIT, LIMIT)
    return clipped


def _rescale(arrays: Arrays, link: Link, factor: NDArray[Any]) -> None:
    for name, axis in link.divided:
        arrays[name] = arrays[name] / _along(factor, axis, arrays[name].ndim)
    for name, axis in link.multiplied:
        arrays[name] = arrays[name] * _along(factor, axis, arrays[name].ndim)


def _peaks(constants: Sequence[tuple[str, int]], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The largest magnitude in each channel, over several constants."""
    channels = (np.moveaxis(np.abs(arrays[name]), axis, 0) for name, axis in constants)
    peaks: NDArray[Any] = np.max([array.reshape(array.shape[0], -1).max(axis=1) for array in channels], axis=0)
    return peaks


def _mean(values: NDArray[Any]) -> Any:
    return np.exp(np.log(values).mean())


def _along(factor: NDArray[Any], axis: int, ndim: int) -> NDArray[Any]:
    shape = [1] * ndim
    shape[axis] = -1
    return factor.reshape(shape)
