"""Operators on images and regions of them, and others that give a few numbers for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.rules.windows import windows
from forge_pipeline.ir.sizes.value import Known


def roi_align(op: Operation) -> Sequence[Known]:
    """Each region as an image of one size."""
    data, rois = needed(op.shape(0)), needed(op.shape(1))
    sides = int(op.attribute("output_height", 1)), int(op.attribute("output_width", 1))
    return [Known(op.input(0).dtype, (rois[0], data[1], *sides))]


def roi_pool(op: Operation) -> Sequence[Known]:
    """MaxRoiPool."""
    data, rois = needed(op.shape(0)), needed(op.shape(1))
    return [Known(op.input(0).dtype, (rois[0], data[1], *(int(side) for side in op.attribute("pooled_shape"))))]


def unpool(op: Operation) -> Sequence[Known]:
    """MaxUnpool: as large as the pool's input was, unless it is said."""
    given, shape = op.input(0), needed(op.shape(0))
    if op.has(2):
        sizes = op.sizes("", 2)
        if sizes is None:
            raise Unknown
        return [Known(given.dtype, tuple(sizes))]
    kernel = [int(entry) for entry in op.attribute("kernel_shape")]
    strides = [int(entry) for entry in op.attribute("strides", [1] * len(kernel))]
    pads = [int(entry) for entry in op.attribute("pads", [0] * (2 * len(kernel)))]
    around = [before + behind for before, behind in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
    sides = [(s - 1) * st + k - p for s, st, k, p in zip(shape[2:], strides, kernel, around, strict=True)]
    return [Known(given.dtype, (*shape[:2], *sides))]


def affine_grid(op: Operation) -> Sequence[Known]:
    """Points of a grid, batch and space before the coordinates."""
    sizes = op.sizes("", 1)
    if sizes is None:
        raise Unknown
    return [Known(op.input(0).dtype, (sizes[0], *sizes[2:], len(sizes) - 2))]


def col2im(op: Operation) -> Sequence[Known]:
    """Blocks put back into an image."""
    given, shape = op.input(0), needed(op.shape(0))
    image, block = op.sizes("", 1), op.sizes("", 2)
    if image is None or block is None:
        raise Unknown
    return [Known(given.dtype, (shape[0], e.floordiv(shape[1], e.product(block)), *image))]


def center_crop_pad(op: Operation) -> Sequence[Known]:
    """Crop or pad axes to given sizes."""
    given, shape = op.input(0), list(needed(op.shape(0)))
    sizes = op.sizes("", 1)
    axes = [int(axis) % len(shape) for axis in op.attribute("axes", range(len(shape)))]
    for index, axis in enumerate(axes):
        shape[axis] = op.fresh(str(axis)) if sizes is None else sizes[index]
    return [Known(given.dtype, tuple(shape))]


def deform_conv(op: Operation) -> Sequence[Known]:
    """DeformConv: the windows are those of a convolution."""
    data, weight = needed(op.shape(0)), needed(op.shape(1))
    return [Known(op.input(0).dtype, (data[0], weight[0], *windows(op, data[2:], weight[2:])))]


def loss(op: Operation) -> Sequence[Known]:
    """NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: one number, or one for each label; logarithms beside."""
    given = op.input(0)
    each = op.attribute("reduction", "mean") == "none"
    return [Known(given.dtype, op.shape(1) if each else ()), Known(given.dtype, given.shape)]


def determinant(op: Operation) -> Sequence[Known]:
    """Det: a number for each matrix."""
    return [Known(op.input(0).dtype, needed(op.shape(0))[:-2])]


def image_decoder(op: Operation) -> Sequence[Known]:
    """ImageDecoder: height and width are in the file."""
    channels = 1 if op.attribute("pixel_format", "RGB") == "Grayscale" else 3
    return [Known(TensorProto.UINT8, (op.fresh("height"), op.fresh("width"), channels))]


def multinomial(op: Operation) -> Sequence[Known]:
    """Multinomial: samples for each row."""
    count = int(op.attribute("sample_size", 1))
    return [Known(int(op.attribute("dtype", TensorProto.INT32)), (needed(op.shape(0))[0], count))]


RULES: Final[Mapping[str, Rule]] = {
    "RoiAlign": roi_align,
    "MaxRoiPool": roi_pool,
    "MaxUnpool": unpool,
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "CenterCropPad": center_crop_pad,
    "DeformConv": deform_conv,
    "Det": determinant,
    "ImageDecoder": image_decoder,
    "Multinomial": multinomial,
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), loss),
}
