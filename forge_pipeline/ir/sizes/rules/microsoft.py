"""Operators of com.microsoft that ONNX Runtime's optimizers and quantizers write into files.

After ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.rules import attention, linear, normalization, slicing, windows
from forge_pipeline.ir.sizes.value import Known, Shape


def _same(op: Operation) -> Sequence[Known]:
    return [Known(op.input(0).dtype, op.shape(0))]


def _binary(first: int, second: int) -> Rule:
    """Return the rule of an operator on two quantized values."""

    def rule(op: Operation) -> Sequence[Known]:
        return [Known(op.input(0).dtype, op.broadcast(needed(op.shape(first)), needed(op.shape(second))))]

    return rule


def _where(op: Operation) -> Sequence[Known]:
    shapes = [needed(op.shape(index)) for index in (0, 1, 4)]
    return [Known(op.input(1).dtype, op.broadcast(*shapes))]


def _fused_matmul(op: Operation) -> Sequence[Known]:
    """FusedMatMul: either side with its last axes, or its batch and rows, transposed."""
    left, right = needed(op.shape(0)), needed(op.shape(1))
    a = _turned(left, bool(op.attribute("transA", 0)), bool(op.attribute("transBatchA", 0)))
    b = _turned(right, bool(op.attribute("transB", 0)), bool(op.attribute("transBatchB", 0)))
    return [Known(op.input(0).dtype, linear.product_shape(op, a, b))]


def _turned(shape: Shape, matrix: bool, batch: bool) -> Shape:
    if batch and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if matrix and len(shape) > 1 else shape


def _quantized_product(scale: int) -> Rule:
    """Return the rule of a product of quantized matrices whose result is real, of the type of input ``scale``."""

    def rule(op: Operation) -> Sequence[Known]:
        shape = linear.product_shape(op, needed(op.shape(0)), needed(op.shape(1)))
        return [Known(op.input(scale).dtype, shape)]

    return rule


def _matmul_nbits(op: Operation) -> Sequence[Known]:
    shape = needed(op.shape(0))
    op.require_equal(shape[-1], int(op.attribute("K")), "the inner extents differ")
    return [Known(op.input(0).dtype, (*shape[:-1], int(op.attribute("N"))))]


def _qgemm(op: Operation) -> Sequence[Known]:
    left, right = needed(op.shape(0)), needed(op.shape(3))
    rows = left[1] if op.attribute("transA", 0) else left[0]
    columns = right[0] if op.attribute("transB", 0) else right[1]
    return [Known(op.input(8).dtype if op.has(8) else TensorProto.FLOAT, (rows, columns))]


def _skip_layer_norm(op: Operation) -> Sequence[Known]:
    """SkipLayerNormalization: the result, mean and deviation, and the sum."""
    dtype, shape = op.input(0).dtype, needed(op.shape(0))
    statistics = Known(TensorProto.FLOAT, (*shape[:-1], 1))
    return [Known(dtype, shape), statistics, statistics, Known(dtype, shape)]


def _embed_layer_norm(op: Operation) -> Sequence[Known]:
    """EmbedLayerNormalization: embeddings added and normalized, the mask's indices, and the sum."""
    batch, steps = needed(op.shape(0))
    table = op.input(2)
    shape = (batch, steps, needed(table.shape)[1])
    return [Known(table.dtype, shape), Known(TensorProto.INT32, (batch,)), Known(table.dtype, shape)]


def _channels_last(rule: Callable[[Operation, Shape, Shape], Shape], weight: int, result: int) -> Rule:
    def found(op: Operation) -> Sequence[Known]:
        data, kernel = needed(op.shape(0)), needed(op.shape(weight))
        shape = rule(op, (data[0], data[-1], *data[1:-1]), kernel)
        return [Known(op.input(result).dtype, (shape[0], *shape[2:], shape[1]))]

    return found


def _qlinear_conv(op: Operation) -> Sequence[Known]:
    if op.attribute("channels_last", 0):
        return _channels_last(windows.convolved, 3, 7)(op)
    return windows.RULES["QLinearConv"](op)


def _qlinear_pool(op: Operation) -> Sequence[Known]:
    data = needed(op.shape(0))
    last = bool(op.attribute("channels_last", 0))
    first = (data[0], data[-1], *data[1:-1]) if last else data
    if op.node.op_type == "QLinearGlobalAveragePool":
        sides: Shape = tuple(1 for _ in first[2:])
    else:
        kernel = tuple(int(entry) for entry in op.attribute("kernel_shape"))
        sides = tuple(windows.windows(op, first[2:], kernel, ceil=bool(op.attribute("ceil_mode", 0))))
    shape = (first[0], *sides, first[1]) if last else (first[0], first[1], *sides)
    return [Known(op.input(0).dtype, shape)]


def _qlinear_concat(op: Operation) -> Sequence[Known]:
    """QLinearConcat: scale and zero point of the result, then data, scale and zero point of each part."""
    places = range(2, len(op.inputs), 3)
    shapes = [needed(op.shape(place)) for place in places]
    return [Known(op.input(2).dtype, slicing.joined(op, shapes, op.axis(1, len(shapes[0]))))]


def _half_width(op: Operation) -> Sequence[Known]:
    """BiasSplitGelu: the last axis in two, one a factor of the other."""
    shape = needed(op.shape(0))
    return [Known(op.input(0).dtype, (*shape[:-1], e.floordiv(shape[-1], 2)))]


def _gather_block_quantized(op: Operation) -> Sequence[Known]:
    shape, taken = needed(op.shape(0)), needed(op.shape(1))
    axis = int(op.attribute("gather_axis", 0)) % len(shape)
    return [Known(op.input(2).dtype, (*shape[:axis], *taken, *shape[axis + 1 :]))]


RULES: Final[Mapping[str, Rule]] = {
    **attention.MICROSOFT,
    **dict.fromkeys(("BiasGelu", "FastGelu", "QuickGelu", "Gelu", "BiasAdd", "BiasSoftmax", "GroupNorm"), _same),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Inverse", "Trilu", "FakeQuant"), _same),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _binary(0, 3)),
    "QLinearWhere": _where,
    "QLinearConcat": _qlinear_concat,
    "QLinearConv": _qlinear_conv,
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), _qlinear_pool),
    "QGemm": _qgemm,
    "FusedConv": windows.RULES["Conv"],
    "NhwcFusedConv": _channels_last(windows.convolved, 1, 0),
    "NhwcConv": _channels_last(windows.convolved, 1, 0),
    "NhwcMaxPool": _qlinear_pool,
    "FusedGemm": linear.RULES["Gemm"],
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    "MatMulIntegerToFloat": _quantized_product(2),
    "DynamicQuantizeMatMul": _quantized_product(0),
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized,
    "QuantizeLinear": normalization.RULES["QuantizeLinear"],
    "DequantizeLinear": normalization.RULES["DequantizeLinear"],
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_norm),
    "EmbedLayerNormalization": _embed_layer_norm,
    "BiasSplitGelu": _half_width,
}
