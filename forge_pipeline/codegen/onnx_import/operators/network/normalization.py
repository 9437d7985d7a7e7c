"""Normalizations: by statistics of a channel, of a group of them, of the last axes, or by a norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport


def _batch(node: NodeImport) -> Any:
    if node.attributes.get("training_mode", 0) or any(node.wants(index) for index in range(1, 5)):
        raise NotImplementedError("training mode")
    if not node.attributes.get("spatial", 1):
        raise NotImplementedError("statistics of each pixel")
    found = op.nn.batch_norm(
        *(node.input(index) for index in range(5)),
        axis=1,
        epsilon=float(node.attributes.get("epsilon", 1e-5)),
        momentum=float(node.attributes.get("momentum", 0.9)),
        training=False,
    )
    return relax.TupleGetItem(found, 0)


def _centred(node: NodeImport, value: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Emit (x - mean) / sqrt(variance + epsilon) along axes, the mean, and the reciprocal of the deviation."""
    dtype = str(value.ty.dtype)
    mean = node.emit(op.mean(value, list(axes), True))
    away = node.emit(op.subtract(value, mean))
    variance = node.emit(op.mean(node.emit(op.multiply(away, away)), list(axes), True))
    deviation = node.emit(op.sqrt(node.emit(op.add(variance, node.const(epsilon, dtype)))))
    inverse = node.emit(op.divide(node.const(1, dtype), deviation))
    return node.emit(op.divide(away, deviation)), mean, inverse


def _instance(node: NodeImport) -> Any:
    """InstanceNormalization; of an image reshaped to a row for each group of its channels, as exporters write
    GroupNormalization, that of the image."""
    value, shape, epsilon = node.input(0), node.shape(), float(node.attributes.get("epsilon", 1e-5))
    image, groups = node.scope.before_reshape(value), shape[1]
    if not isinstance(groups, int):
        found, _, _ = _centred(node, value, range(2, len(shape)), epsilon)
    elif image is None or not _has_groups(image, value):
        return op.nn.group_norm(value, node.input(1), node.input(2), groups, 1, list(range(2, len(shape))), epsilon)
    else:
        found = node.emit(op.reshape(_normalized(node, image, groups, epsilon), value.ty.shape))
    wide = (1, *node.shape(1), *(1,) * (len(shape) - 2))
    for operator, index, neutral in ((op.multiply, 1, 1), (op.add, 2, 0)):
        numbers = node.constant(index)
        if numbers is None or (numbers != neutral).any():
            found = node.emit(operator(found, node.reshape(node.input(index), wide)))
    return found


def _has_groups(image: Any, rows: Any) -> bool:
    """Return whether ``rows`` (N, groups, ...) are an image (N, C, ...) with a row for each group of its channels."""
    own, wanted = image.ty.shape.values, rows.ty.shape.values
    if len(own) < 3 or not tvm_ffi.structural_equal(own[0], wanted[0]):
        return False
    numbers = [int(extent) if isinstance(extent, tirx.IntImm) else 0 for extent in (own[1], wanted[1])]
    return numbers[0] > 0 and numbers[1] > 0 and numbers[0] % numbers[1] == 0


def _normalized(node: NodeImport, image: Any, groups: int, epsilon: float) -> Any:
    """Emit an image (N, C, ...) with the mean and the deviation of each group of channels taken out."""
    _, channels, *space = image.ty.shape.values
    ones, zeros = (node.const(numbers, node.dtype()) for numbers in (np.ones(int(channels)), np.zeros(int(channels))))
    return node.emit(op.nn.group_norm(image, ones, zeros, groups, 1, list(range(2, 2 + len(space))), epsilon))


def _layer(node: NodeImport) -> Any:
    """LayerNormalization; its mean and reciprocal deviation where somebody reads them."""
    rank, dtype = node.rank(), node.dtype()
    axes = list(range(node.axis(-1), rank))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    inner = node.shape()[axes[0] :]
    is_plain = node.shape(1) == inner and (not node.has(2) or node.shape(2) == inner) and dtype == "float32"
    if is_plain and not node.wants(1) and not node.wants(2) and all(isinstance(extent, int) for extent in inner):
        bias = node.input(2) if node.has(2) else node.const(_zeros(inner), dtype)
        return op.nn.layer_norm(node.input(0), node.input(1), bias, axes, epsilon)
    value = node.input(0)
    if node.attributes.get("stash_type", 1) == 1 and dtype != "float32":
        value = node.emit(op.astype(value, "float32"))
    found, mean, inverse = _centred(node, value, axes, epsilon)
    found = found if str(found.ty.dtype) == dtype else node.emit(op.astype(found, dtype))
    found = node.emit(op.multiply(found, node.input(1)))
    return [node.emit(op.add(found, node.input(2))) if node.has(2) else found, mean, inverse]


def _zeros(extents: Sequence[Any]) -> Any:
    return np.zeros(extents)


def _rms(node: NodeImport) -> Any:
    """``x / sqrt(mean(x^2) + epsilon) scale`` over the last axes (Zhang and Sennrich, 2019)."""
    rank, dtype = node.rank(), node.dtype()
    axes = list(range(node.axis(-1), rank))
    value = node.input(0)
    wide = "float32" if node.attributes.get("stash_type", 1) == 1 and dtype in ("float16", "bfloat16") else dtype
    if wide != dtype:
        value = node.emit(op.astype(value, wide))
    square = node.emit(op.mean(node.emit(op.multiply(value, value)), axes, True))
    epsilon = node.const(float(node.attributes.get("epsilon", 1e-5)), wide)
    found = node.emit(op.divide(value, node.emit(op.sqrt(node.emit(op.add(square, epsilon))))))
    found = found if wide == dtype else node.emit(op.astype(found, dtype))
    return op.multiply(found, node.input(1))


def _group(node: NodeImport) -> Any:
    """GroupNormalization; scale and bias are one for each group before opset 21, one for each channel since."""
    groups, shape = int(node.attributes["num_groups"]), node.shape()
    channels, epsilon = shape[1], float(node.attributes.get("epsilon", 1e-5))
    if not isinstance(channels, int):
        raise NotImplementedError("a number of channels that is not known")
    factors = [node.input(1), node.input(2)]
    if node.opset < 21:
        factors = [_repeated(node, factor, channels // groups) for factor in factors]
    image = node.input(0) if len(shape) > 2 else node.reshape(node.input(0), (*shape, 1))
    found = op.nn.group_norm(image, *factors, groups, 1, list(range(2, max(len(shape), 3))), epsilon)
    return node.reshape(node.emit(found), shape)


def _repeated(node: NodeImport, factor: Any, times: int) -> Any:
    """Emit a number for each channel, of one for each group of ``times``."""
    (groups,) = factor.ty.shape.values
    spread = node.emit(op.broadcast_to(node.reshape(factor, (int(groups), 1)), (int(groups), times)))
    return node.reshape(spread, (int(groups) * times,))


def _mean_variance(node: NodeImport) -> Any:
    """``(x - mean) / sqrt(variance)``, with the standard's 1e-9 beside the deviation."""
    value, dtype = node.input(0), node.dtype()
    axes = [int(axis) % node.rank() for axis in node.attributes.get("axes", (0, 2, 3))]
    mean = node.emit(op.mean(value, axes, True))
    away = node.emit(op.subtract(value, mean))
    variance = node.emit(op.mean(node.emit(op.multiply(away, away)), axes, True))
    return op.divide(away, node.emit(op.add(node.emit(op.sqrt(variance)), node.const(1e-9, dtype))))


def _local_response(node: NodeImport) -> Any:
    """``x / (bias + alpha / size sum(x^2))^beta``, the sum over the channels around each (LRN-13)."""
    size, dtype = int(node.attributes["size"]), node.dtype()
    before = (size - 1) // 2

    def squares(image: Any) -> Any:
        along = te.reduce_axis((0, size), name="k")

        def element(*at: Any) -> Any:
            channel = at[1] + along - before
            inside = tirx.all(channel >= 0, channel < image.shape[1])
            pixel = image(at[0], channel, *at[2:])
            return te.sum(tirx.if_then_else(inside, pixel * pixel, tirx.const(0, dtype)), axis=along)

        return te.compute(image.shape, element, name="squares")

    total = node.kernel(squares, node.input(0), name="local_squares")
    alpha, beta, bias = (
        float(node.attributes.get(name, default)) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    scaled = node.emit(op.add(node.emit(op.multiply(total, node.const(alpha / size, dtype))), node.const(bias, dtype)))
    return op.divide(node.input(0), node.emit(op.power(scaled, node.const(beta, dtype))))


def _norm(node: NodeImport) -> Any:
    """LpNormalization: by the sum of magnitudes (p = 1) or the Euclidean length (p = 2); a null vector stays."""
    value, axis, dtype = node.input(0), node.axis(-1), node.dtype()
    p = int(node.attributes.get("p", 2))
    parts = node.emit(op.abs(value) if p == 1 else op.multiply(value, value))
    total = node.emit(op.sum(parts, [axis], True))
    length = total if p == 1 else node.emit(op.sqrt(total))
    is_null = node.emit(op.equal(length, node.const(0, dtype)))
    return op.divide(value, node.emit(op.where(is_null, node.const(1, dtype), length)))


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LRN": _local_response,
    "LayerNormalization": _layer,
    "LpNormalization": _norm,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms,
    "SimplifiedLayerNormalization": _rms,
}
