"""Scales and shifts per channel, taken into the weights of the linear operator before them.

Arithmetic is in float64 with operations that IEEE 754 rounds the same everywhere, so folded weights have the same
bits on every machine. Source: Ioffe and Szegedy, "Batch Normalization", 2015, section 3.1; the operator forms are
those of the ONNX operator specification, versions 1 to 15 of BatchNormalization.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op, set_attribute
from forge_pipeline.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """``y[:, c] = scale[c] * x[:, c] + shift[c]``: float64, one entry a channel or one for all."""

    scale: Array
    shift: Array

    @property
    def finite(self) -> bool:
        """False for a variance that is zero, or for damaged statistics."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())


@verified(Tolerance())
class FoldBatchNorm(Transformation[NoOptions]):
    """Take a BatchNormalization into the Conv, ConvTranspose, Gemm or MatMul whose output it alone reads."""

    def call(self, graph: Graph) -> int:
        """Fold in order, so that what follows a fold sees the operator under the new name."""
        changes = 0
        for node in graph.nodes:
            affine = batchnorm(graph, node)
            if affine is not None and not (
                is_op(graph.producer(node.input[0]), "MatMul") and graph.rank(node.input[0]) != 2
            ):
                changes += _absorb(graph, node, 0, affine)
        return changes


@verified(Tolerance())
class FoldAffine(Transformation[NoOptions]):
    """Take Add, Sub, Mul and Div by constants per channel into the linear operator before them."""

    def call(self, graph: Graph) -> int:
        """Fold in order, so that a chain of them goes in one walk."""
        changes = 0
        for node in graph.nodes:
            found = arithmetic(graph, node)
            if found is not None:
                operand, affine = found
                changes += _absorb(graph, node, operand, affine)
        return changes


def batchnorm(graph: Graph, node: NodeProto) -> Affine | None:
    """Return what an inference-mode BatchNormalization does; None for any other node or mode."""
    if not is_op(node, "BatchNormalization") or len(node.input) != 5:
        return None
    if attribute(node, "training_mode", 0) or attribute(node, "spatial", 1) != 1:
        return None
    if graph.opset() < 7 and not attribute(node, "is_test", 0):
        return None
    if any(name and (graph.users(name) or graph.is_output(name)) for name in node.output[1:]):
        return None
    arrays = [graph.array(name) for name in node.input[1:]]
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array).astype(np.float64) for array in arrays)
    epsilon = float(np.float32(attribute(node, "epsilon", 1e-5)))
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        affine = Affine(scale=scale, shift=beta - mean * scale)
    return affine if affine.finite else None


def arithmetic(graph: Graph, node: NodeProto) -> tuple[int, Affine] | None:
    """Return which operand of an Add, Sub, Mul or Div by a constant is variable, and what happens to it."""
    if not is_op(node, "Add", "Sub", "Mul", "Div") or len(node.input) != 2 or attribute(node, "broadcast") is not None:
        return None
    operand = 1 if graph.is_constant(node.input[0]) else 0
    if operand == 1 and node.op_type == "Div":
        return None
    array = graph.array(node.input[1 - operand])
    rank = graph.rank(node.input[operand])
    maker = graph.producer(node.input[operand])
    if array is None or array.dtype.kind != "f" or rank is None or maker is None:
        return None
    channel = rank - 1 if is_op(maker, "Gemm", "MatMul") else 1
    entries = per_channel(array, rank, channel)
    if entries is None:
        return None
    one, none = np.ones(1), np.zeros(1)
    match node.op_type:
        case "Add":
            affine = Affine(scale=one, shift=entries)
        case "Sub":
            affine = Affine(scale=one, shift=-entries) if operand == 0 else Affine(scale=-one, shift=entries)
        case "Mul":
            affine = Affine(scale=entries, shift=none)
        case _:
            with np.errstate(divide="ignore"):
                affine = Affine(scale=1.0 / entries, shift=none)
    return (operand, affine) if affine.finite else None


def per_channel(array: Array, rank: int, channel: int) -> Array | None:
    """Return a broadcast constant as a vector over the channels, None where it varies along another axis."""
    if array.ndim > rank or not array.size:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != channel):
        return None
    return array.astype(np.float64).reshape(-1)


def _absorb(graph: Graph, node: NodeProto, operand: int, affine: Affine) -> bool:
    linear = graph.producer(node.input[operand])
    if linear is None or linear.op_type not in ABSORBERS or linear.domain not in ("", "ai.onnx"):
        return False
    reader = graph.only_user(linear.output[0])
    if reader is None or reader is not node:
        return False
    changed = ABSORBERS[linear.op_type](graph, linear, affine)
    if changed:
        target = node.output[0]
        graph.remove(node)
        graph.set_output(linear, 0, target)
    return changed


def _conv(graph: Graph, node: NodeProto, affine: Affine) -> bool:
    weight = graph.array(node.input[1])
    if weight is None:
        return False
    channels = weight.shape[0]
    if not _per(channels, affine):
        return False
    scale = np.broadcast_to(affine.scale, channels)
    scaled = weight.astype(np.float64) * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    return _rewire(graph, node, scaled, weight, affine, channels)


def _conv_transpose(graph: Graph, node: NodeProto, affine: Affine) -> bool:
    weight = graph.array(node.input[1])
    if weight is None:
        return False
    group = attribute(node, "group", 1)
    inputs, outputs, *kernel = weight.shape
    channels = outputs * group
    if not _per(channels, affine):
        return False
    scale = np.broadcast_to(affine.scale, channels).reshape(group, 1, outputs, *(1,) * len(kernel))
    grouped = weight.astype(np.float64).reshape(group, inputs // group, outputs, *kernel)
    return _rewire(graph, node, (grouped * scale).reshape(weight.shape), weight, affine, channels)


def _gemm(graph: Graph, node: NodeProto, affine: Affine) -> bool:
    weight = graph.array(node.input[1])
    if weight is None:
        return False
    has_bias = len(node.input) > 2 and bool(node.input[2])
    bias = graph.array(node.input[2]) if has_bias else np.zeros(1, weight.dtype)
    if bias is None:
        return False
    axis = 0 if attribute(node, "transB", 0) else 1
    channels = weight.shape[axis]
    if not _per(channels, affine):
        return False
    scale, shift = np.broadcast_to(affine.scale, channels), np.broadcast_to(affine.shift, channels)
    beta = float(attribute(node, "beta", 1.0))
    scaled = weight.astype(np.float64) * (scale[:, None] if axis == 0 else scale)
    shifted = beta * bias.astype(np.float64) * scale + shift
    if not fit(weight, scaled, shifted):
        return False
    graph.set_input(node, 1, graph.add_constant(scaled.astype(weight.dtype), f"{node.input[1]}_scaled"))
    graph.set_input(node, 2, graph.add_constant(shifted.astype(weight.dtype), f"{node.output[0]}_bias"))
    set_attribute(node, "beta", None)
    return True


def _matmul(graph: Graph, node: NodeProto, affine: Affine) -> bool:
    """MatMul has no bias: with a shift, one of two matrices becomes a Gemm."""
    weight = graph.array(node.input[1])
    if weight is None or weight.ndim < 2 or not _per(weight.shape[-1], affine):
        return False
    if affine.shift.any():
        if weight.ndim != 2 or graph.rank(node.input[0]) != 2 or graph.opset() < 7 or not _gemm(graph, node, affine):
            return False
        node.op_type = "Gemm"
        return True
    scaled = weight.astype(np.float64) * np.broadcast_to(affine.scale, weight.shape[-1])
    if not fit(weight, scaled):
        return False
    graph.set_input(node, 1, graph.add_constant(scaled.astype(weight.dtype), f"{node.input[1]}_scaled"))
    return True


def _rewire(graph: Graph, node: NodeProto, scaled: Array, weight: Array, affine: Affine, channels: int) -> bool:
    has_bias = len(node.input) > 2 and bool(node.input[2])
    bias = graph.array(node.input[2]) if has_bias else np.zeros(channels, weight.dtype)
    if bias is None:
        return False
    shifted = np.broadcast_to(bias.astype(np.float64) * affine.scale + affine.shift, channels)
    if not fit(weight, scaled, shifted):
        return False
    if (affine.scale != 1).any():
        graph.set_input(node, 1, graph.add_constant(scaled.astype(weight.dtype), f"{node.input[1]}_scaled"))
    if has_bias or shifted.any():
        graph.set_input(node, 2, graph.add_constant(shifted.astype(weight.dtype), f"{node.output[0]}_bias"))
    return True


def _per(channels: int, affine: Affine) -> bool:
    """Whether there is one entry a channel, or one for all: more would make the output larger."""
    return affine.scale.size in (1, channels) and affine.shift.size in (1, channels)


def fit(weight: Array, *arrays: Array) -> bool:
    """Whether the new weights are finite in the type of the old ones."""
    with np.errstate(over="ignore"):
        return all(bool(np.isfinite(array.astype(weight.dtype)).all()) for array in arrays)


ABSORBERS: Registry[Callable[[Graph, NodeProto, Affine], bool]] = Registry(
    "linear operator", {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul}
)
