"""Rounding a layer's weights together: what one weight loses to its step, the others of its output make up for.

Rounded one by one, weights are off by half a step each, whatever they are multiplied with. What counts is the layer's
output: with H the second moments of its inputs, an output channel whose weights are off by e is off by e H e' in the
mean square. Starting from plain rounding, each weight in turn takes the integer that is best for that, given the
others, so that no sweep ever makes it worse: coordinate descent, after K. Behdin et al., "QuantEase: Optimization-based
Quantization for Language Models" (2023); E. Frantar et al., "GPTQ" (ICLR 2023) solve the same problem greedily.

H is estimated on the probes and shrunk towards its diagonal, the more the fewer rows there are for its columns; with
the diagonal alone, plain rounding is what is best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.network import Network, attribute, layer
from forge_pipeline.quantization.plan import Plan
from forge_pipeline.quantization.weights import WeightScheme, channel_axis

SWEEPS = 6
BLOCK = 64  # columns whose effect on the others is added up before it is spread
ROWS = 8  # for each column of H
LEAST_ROWS = 4096
BUDGET = 256 << 20  # bytes of second moments held at once; a pass over the probes for each such share

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A product by constant weights; ``columns``: the inputs of an output channel, in each of ``groups``."""

    node: NodeProto
    groups: int
    columns: int

    @property
    def size(self) -> int:
        """Bytes of its second moments."""
        return 4 * self.groups * self.columns**2


def round_weights(
    network: Network, plan: Plan, scheme: WeightScheme, probes: Sequence[Probe]
) -> dict[str, NDArray[np.int8]] | None:
    """Return the integers of each weight that has something to gain, by its name; None where none has."""
    layers = [found for node in network.nodes if (found := _layer(network, node, plan)) is not None]
    codes: dict[str, NDArray[np.int8]] = {}
    for share in _shares(layers):
        moments = _moments(network, share, probes)
        for item in share:
            codes[item.node.input[1]] = _solve(network, item, scheme, *moments[item.node.output[0]])
    return codes or None


def _layer(network: Network, node: NodeProto, plan: Plan) -> Layer | None:
    if layer(node) not in plan.products or node.input[1] not in network.constants:
        return None
    name = node.input[1]
    if len(network.consumers[name]) > 1 or node.input[0] in network.constants:
        return None
    shape = network.array(name).shape
    if node.op_type == "Conv":
        return Layer(node=node, groups=attribute(node, "group", 1), columns=int(np.prod(shape[1:])))
    if node.op_type == "Gemm" and not attribute(node, "transA", 0):
        return Layer(node=node, groups=1, columns=shape[1 if attribute(node, "transB", 0) else 0])
    if node.op_type == "MatMul" and len(shape) == 2:
        return Layer(node=node, groups=1, columns=shape[0])
    return None


def _shares(layers: Sequence[Layer]) -> Iterator[list[Layer]]:
    share: list[Layer] = []
    for item in layers:
        if share and sum(other.size for other in share) + item.size > BUDGET:
            yield share
            share = []
        share.append(item)
    if share:
        yield share


def _moments(network: Network, layers: Sequence[Layer], probes: Sequence[Probe]) -> dict[str, tuple[Floats, int]]:
    """The second moments [groups, columns, columns] of each layer's inputs, and the rows that they are the mean of."""
    computed = tuple(dict.fromkeys(item.node.input[0] for item in layers if item.node.input[0] in network.producer))
    run = Interpreter(network.model, taps=computed, optimized=True)
    sums = {item.node.output[0]: np.zeros((item.groups, item.columns, item.columns), np.float32) for item in layers}
    counts = dict.fromkeys(sums, 0)
    for probe in probes:
        values = {**probe.feed, **run(probe.feed, computed)}
        for item in layers:
            name = item.node.output[0]
            limit = -(-max(ROWS * item.columns, LEAST_ROWS) // len(probes))
            rows = _rows(network, item, values[item.node.input[0]], limit)
            sums[name] += np.matmul(rows.transpose(0, 2, 1), rows)
            counts[name] += rows.shape[1]
    return {name: (total / np.float32(counts[name]), counts[name]) for name, total in sums.items()}


def _rows(network: Network, item: Layer, values: Floats, limit: int) -> Floats:
    """At most about ``limit`` of the vectors that the weights are multiplied with: [groups, rows, columns]."""
    if item.node.op_type != "Conv":
        flat = values.reshape(-1, item.columns)
        return flat[:: max(1, -(-len(flat) // limit))][None]
    kernel = network.array(item.node.input[1]).shape[2:]
    windows = _windows(item.node, values, kernel)  # [batch, channels, *places, *kernel]
    places = windows.shape[0], *windows.shape[2 : 2 + len(kernel)]
    chosen = np.arange(0, int(np.prod(places)), _step(int(np.prod(places)), limit))
    batch, *where = np.unravel_index(chosen, places)
    rows = np.moveaxis(windows, 1, len(places))[(batch, *where)]  # [rows, channels, *kernel]
    return np.ascontiguousarray(rows.reshape(len(chosen), item.groups, item.columns).transpose(1, 0, 2))


def _step(count: int, limit: int) -> int:
    """A stride through ``count`` places that leaves about ``limit``, and is in step with no usual length of a row."""
    step = max(1, -(-count // limit))
    return step + 1 if step > 1 and step % 2 == 0 else step


def _windows(node: NodeProto, values: Floats, kernel: tuple[int, ...]) -> Floats:
    rank = len(kernel)
    strides = list(attribute(node, "strides", [1] * rank))
    dilations = list(attribute(node, "dilations", [1] * rank))
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    pads = _pads(node, values.shape[2:], spans, strides)
    padded = np.pad(values, [(0, 0), (0, 0), *pads])
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    places = tuple(slice(None, None, stride) for stride in strides)
    taps = tuple(slice(None, None, dilation) for dilation in dilations)
    return windows[(slice(None), slice(None), *places, *taps)]


def _pads(
    node: NodeProto, shape: tuple[int, ...], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    mode = attribute(node, "auto_pad", b"NOTSET")
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [
            max((-(-size // stride) - 1) * stride + span - size, 0)
            for size, span, stride in zip(shape, spans, strides, strict=True)
        ]
        less = [total // 2 for total in totals]
        more = [total - part for total, part in zip(totals, less, strict=True)]
        return list(zip(less, more, strict=True) if mode == b"SAME_UPPER" else zip(more, less, strict=True))
    pads = list(attribute(node, "pads", [0] * (2 * len(spans)))) if mode == b"NOTSET" else [0] * (2 * len(spans))
    return list(zip(pads[: len(spans)], pads[len(spans) :], strict=True))


def _solve(network: Network, item: Layer, scheme: WeightScheme, moments: Floats, count: int) -> NDArray[np.int8]:
    node = item.node
    weights = network.array(node.input[1])
    axis = channel_axis(node, 1, network) if scheme.per_channel else None
    scale = scheme.scale(weights, axis)
    across = node.op_type == "MatMul" or (node.op_type == "Gemm" and not attribute(node, "transB", 0))
    matrix = weights.T if across else weights.reshape(weights.shape[0], -1)  # [outputs, columns]
    wide = np.broadcast_to(scale.reshape(-1, 1) if axis is not None else scale, (len(matrix), 1))
    grouped = matrix.reshape(item.groups, -1, item.columns)
    codes = descend(grouped, wide.reshape(item.groups, -1, 1), shrink(moments, count), scheme.limit)
    flat = codes.reshape(matrix.shape)
    return np.ascontiguousarray(flat.T if across else flat.reshape(weights.shape))


def shrink(moments: Floats, count: int) -> Floats:
    """Return the second moments with what is off the diagonal made smaller, as far as ``count`` rows do not show it."""
    columns = moments.shape[-1]
    result: Floats = moments * np.float32(count / (count + columns))
    diagonal = np.arange(columns)
    result[:, diagonal, diagonal] = moments[:, diagonal, diagonal]
    return result


def descend(weights: Floats, scale: Floats, moments: Floats, limit: int) -> NDArray[np.int8]:
    """Return integers up to ``limit`` with the least error at the output that single changes lead to.

    ``weights`` [groups, outputs, columns], ``scale`` [groups, outputs, 1], ``moments`` [groups, columns, columns].
    """
    codes = np.clip(np.rint(weights / scale), -limit, limit)
    error = weights - codes * scale
    pull = np.matmul(error, moments)  # half the gradient: how the others' errors add up at each column
    own = np.diagonal(moments, axis1=1, axis2=2)[:, None, :].copy()
    own[own <= 0] = 1.0
    for _ in range(SWEEPS):
        changed = False
        for start in range(0, weights.shape[-1], BLOCK):
            columns = slice(start, start + BLOCK)
            inner, local = moments[:, columns, columns], pull[..., columns].copy()
            moved = np.zeros_like(local)
            for at in range(local.shape[-1]):
                index = start + at
                here, weight = error[..., index], own[..., index]
                wanted = weights[..., index] + local[..., at] / weight - here
                best = np.clip(np.rint(wanted / scale[..., 0]), -limit, limit)
                step = weights[..., index] - best * scale[..., 0] - here
                if step.any():
                    codes[..., index], error[..., index] = best, here + step
                    moved[..., at] = step
                    local += step[..., None] * inner[:, at, None, :]
            if moved.any():
                changed = True
                pull += np.matmul(moved, moments[:, columns, :])
        if not changed:
            break
    integers: NDArray[np.int8] = codes.astype(np.int8)
    return integers
