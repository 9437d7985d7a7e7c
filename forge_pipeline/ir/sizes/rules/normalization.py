"""Normalizations with more results than one, and quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known


def batch_normalization(op: Operation) -> Sequence[Known]:
    """Normalize by running statistics; in training they are results too."""
    statistics = [Known(op.input(3).dtype, op.shape(3)), Known(op.input(4).dtype, op.shape(4))]
    return [Known(op.input(0).dtype, op.shape(0)), *statistics, *statistics][: len(op.node.output)]


def layer_normalization(op: Operation) -> Sequence[Known]:
    """Normalize over the last axes; mean and deviation keep the others."""
    given, shape = op.input(0), needed(op.shape(0))
    axis = op.axis(-1, len(shape))
    statistics = (*shape[:axis], *(1 for _ in shape[axis:]))
    kind = int(op.attribute("stash_type", TensorProto.FLOAT))
    return [Known(given.dtype, shape), Known(kind, statistics), Known(kind, statistics)][: len(op.node.output)]


def quantize(op: Operation) -> Sequence[Known]:
    """QuantizeLinear: the type of the zero point, or ``output_dtype``."""
    dtype = int(op.attribute("output_dtype", 0)) or (op.input(2).dtype if op.has(2) else TensorProto.UINT8)
    return [Known(dtype, op.shape(0))]


def dequantize(op: Operation) -> Sequence[Known]:
    """DequantizeLinear: the type of the scale, or ``output_dtype``."""
    return [Known(int(op.attribute("output_dtype", 0)) or op.input(1).dtype, op.shape(0))]


def dynamic_quantize(op: Operation) -> Sequence[Known]:
    """DynamicQuantizeLinear: bytes, their scale and zero point."""
    return [Known(TensorProto.UINT8, op.shape(0)), Known(TensorProto.FLOAT, ()), Known(TensorProto.UINT8, ())]


RULES: Final[Mapping[str, Rule]] = {
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": layer_normalization,
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
}
