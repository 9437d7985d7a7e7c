"""The operators of MediaPipe's models that TensorFlow Lite does not have, as MediaPipe's kernels compute them.

Source: mediapipe/util/tflite/operations and tensorflow/lite/delegates/gpu/common/mediapipe. Options are FlexBuffers, or
the structures TfLitePoolParams and TfLiteTransposeConvParams as they lie in memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, Builder, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators import custom_options
from forge_pipeline.frontends.tflite.operators.convolution import window
from forge_pipeline.frontends.tflite.operators.elementwise import angle

_SAME: Final = 1  # TfLitePadding; 2 is VALID
_POOL: Final = 6  # integers of TfLitePoolParams that count: padding, strides x and y, filter x and y, activation


def transposed_convolution(b: Builder, op: Operator) -> None:
    """Convolution2DTransposeBias: a transposed convolution that knows its own size."""
    padding, *strides = custom_options.integers(op, 3)
    strides.reverse()
    weights, given = b.shape(op.inputs[1]), b.shape(op.inputs[0])[1:3]
    cuts = []
    for extent, taps, stride in zip(given, weights[1:3], strides, strict=True):
        if extent is None or taps is None:
            raise unsupported("an open height or width", "a fixed height and width")
        cuts.append(max(0, taps - (extent - 1) % stride - 1) if padding == _SAME else 0)
    kernel = b.real_constant(op.inputs[1], b.data(op.inputs[1], "kernel").transpose(3, 0, 1, 2), 1)
    pads = [*(cut // 2 for cut in cuts), *(cut - cut // 2 for cut in cuts)]
    operands = [b.real(op.inputs[0], FIRST), kernel, b.real(op.inputs[2])]
    name = b.node("ConvTranspose", operands, kernel_shape=list(weights[1:3]), strides=strides, pads=pads)
    b.put(op.outputs[0], name, FIRST)


def pool_with_places(b: Builder, op: Operator) -> None:
    """MaxPoolingWithArgmax2D: the largest of each window, and where in its window it is, counted by rows."""
    padding, stride_x, stride_y, wide, high, activation = custom_options.integers(op, _POOL)
    given = b.shape(op.inputs[0])[1:3]
    if None in given:
        raise unsupported("an open height or width", "a fixed height and width")
    rows, columns = (extent for extent in given if extent is not None)
    around = window(given, same=padding == _SAME, kernel=(high, wide), strides=(stride_y, stride_x), dilations=(1, 1))
    name = b.node("MaxPool", [b.real(op.inputs[0], FIRST)], 2, kernel_shape=(high, wide), **around)
    b.put(op.outputs[0], b.activated(name, activation), FIRST)
    before = around.get("pads", [0, 0])[:2]
    place = b.node("Mod", [f"{name}_1", b.constant(np.int64(rows * columns))])
    width = b.constant(np.int64(columns))
    down, along = b.node("Div", [place, width]), b.node("Mod", [place, width])
    down = b.node("Sub", [down, _origins(b, name, 2, stride_y, before[0])])
    along = b.node("Sub", [along, _origins(b, name, 3, stride_x, before[1])])
    inside = b.node("Add", [b.node("Mul", [down, b.constant(np.int64(wide))]), along])
    inside = b.node("Add", [b.node("Cast", [inside], to=1), b.constant(np.float32(0.1))])
    b.put(op.outputs[1], inside, FIRST)


def _origins(b: Builder, pooled: str, axis: int, stride: int, before: int) -> str:
    """Return where windows begin along ``axis``, shaped so that it broadcasts against [batch, channels, y, x]."""
    count = b.node("Gather", [b.node("Shape", [pooled]), b.constant(np.int64(axis))])
    steps = b.node("Range", [b.constant(np.int64(0)), count, b.constant(np.int64(1))])
    begins = b.node("Sub", [b.node("Mul", [steps, b.constant(np.int64(stride))]), b.constant(np.int64(before))])
    return b.node("Unsqueeze", [begins, b.integers(1)]) if axis == 2 else begins


def unpool(b: Builder, op: Operator) -> None:
    """MaxUnpooling2D: each number at the place in its window that is given, zeros elsewhere."""
    _, stride_x, stride_y, wide, high, _ = custom_options.integers(op, _POOL)
    given = b.shape(op.inputs[0])
    if (stride_x, stride_y) != (wide, high) or None in given[1:]:
        raise unsupported("windows that overlap, or of an open size", "windows side by side, of a fixed size")
    rows, columns, channels = (extent for extent in given[1:] if extent is not None)
    places = b.node("Cast", [b.real(op.inputs[1], FIRST)], to=7)
    places, values = (b.node("Unsqueeze", [name, b.integers(2)]) for name in (places, b.real(op.inputs[0], FIRST)))
    numbers = b.constant(np.arange(high * wide, dtype=np.int64).reshape(-1, 1, 1))
    spread = b.node("Where", [b.node("Equal", [places, numbers]), values, b.constant(np.float32(0))])
    spread = b.node("Reshape", [spread, b.integers(-1, channels, high, wide, rows, columns)])
    spread = b.node("Transpose", [spread], perm=[0, 1, 4, 2, 5, 3])
    b.put(op.outputs[0], b.node("Reshape", [spread, b.integers(-1, channels, rows * high, columns * wide)]), FIRST)


# Landmarks [count, 3] and the matrix [1, 4, 4] that takes places of a crop to places of the image.


def landmarks_to_matrix(b: Builder, op: Operator) -> None:
    """Landmarks2TransformMatrix: of the crop around some landmarks, turned so that two of them lie side by side."""
    options, newer = custom_options.mapping(op), op.version >= 2
    points = b.node("Reshape", [b.real(op.inputs[0]), b.integers(-1, 3)])
    points = b.node("Slice", [points, b.integers(0), b.integers(2), b.integers(1)])
    left, right = (
        b.node("Gather", [points, b.constant(np.int64(custom_options.get(op, options, f"{side}_rotation_idx", int)))])
        for side in ("left", "right")
    )
    apart = b.node("Split", [b.node("Sub", [right, left])], 2, num_outputs=2)
    if newer:
        target = b.constant(np.float32(custom_options.get(op, options, "target_rotation_radians", float, 0.0)))
        turn = b.node("Sub", [target, angle(b, f"{apart}_1", apart)])
    else:
        turn = b.node("Neg", [b.node("Atan", [b.node("Div", [f"{apart}_1", apart])])])
    subset = custom_options.get(op, options, "subset_idxs" if newer else "subset", list)
    back = _turned_back(b, turn)  # for columns; of rows it is the turn itself
    upright = b.node("MatMul", [b.node("Gather", [points, b.integers(*subset)]), back])
    most, least = (b.node(kind, [upright, b.integers(0)], keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
    size = b.node("Sub", [most, least])
    middle = b.node("Mul", [b.node("Add", [most, least]), b.constant(np.float32(0.5))])
    middle = b.node("Squeeze", [b.node("MatMul", [back, b.node("Unsqueeze", [middle, b.integers(1)])]), b.integers(1)])
    fit = _fit_to_pixels if newer else _fit_to_range
    matrix, offset = fit(b, op, back, size, middle)
    columns = [matrix, b.constant(np.zeros((2, 1), np.float32)), b.node("Unsqueeze", [offset, b.integers(1)])]
    rest = b.constant(np.array([[0, 0, 1, 0], [0, 0, 0, 1]], np.float32))
    whole = b.node("Concat", [b.node("Concat", columns, axis=1), rest], axis=0)
    b.put(op.outputs[0], b.node("Unsqueeze", [whole, b.integers(0)]))


def _turned_back(b: Builder, turn: str) -> str:
    """Return the matrix [2, 2] that turns columns back by the angle ``turn`` [1]."""
    parts = [b.node("Cos", [turn]), b.constant(np.eye(2, dtype=np.float32))]
    others = [b.node("Sin", [turn]), b.constant(np.array([[0, 1], [-1, 0]], np.float32))]
    return b.node("Add", [b.node("Mul", parts), b.node("Mul", others)])


def _fit_to_pixels(b: Builder, op: Operator, back: str, size: str, middle: str) -> tuple[str, str]:
    """Version 2: sizes in pixels of the image; the crop is shifted by half of itself."""
    options = custom_options.mapping(op)
    crop = np.array([custom_options.get(op, options, f"output_{side}", int) for side in ("width", "height")])
    factor = np.array([custom_options.get(op, options, f"scale_{axis}", float) for axis in "xy"])
    scale = b.node("Mul", [size, b.constant((factor / crop).astype(np.float32))])
    matrix = b.node("Mul", [back, scale])
    half = b.constant((-crop / 2).astype(np.float32)[:, None])
    return matrix, b.node("Add", [middle, b.node("Squeeze", [b.node("MatMul", [matrix, half]), b.integers(1)])])


def _fit_to_range(b: Builder, op: Operator, back: str, size: str, middle: str) -> tuple[str, str]:
    """Version 1: landmarks in their own range; places go to [-1, 1] and back, by corners."""
    options = custom_options.mapping(op)
    image, crop = (
        np.array(custom_options.get(op, options, name, list)[::-1], np.float32) for name in ("input_hw", "output_hw")
    )
    extent = custom_options.get(op, options, "landmarks_range", int)
    enlarged = custom_options.get(op, options, "bbox_size_multiplier", float) / extent
    scale = b.node("Mul", [size, b.constant(np.float32(enlarged))])
    half = (image - 1) / 2
    scaled = b.node("Mul", [back, scale])
    matrix = b.node("Mul", [scaled, b.constant(half[:, None] * (2 / (crop - 1)))])
    corner = b.node("Squeeze", [b.node("MatMul", [scaled, b.constant(np.full((2, 1), -1, np.float32))]), b.integers(1)])
    middle = b.node("Mul", [middle, b.constant(np.float32(2 / extent))])  # less 1, and 1 more as places count from 0
    return matrix, b.node("Mul", [b.node("Add", [corner, middle]), b.constant(half)])


def _affine(b: Builder, index: int) -> tuple[str, str]:
    """Return the part [2, 2] of a matrix [1, 4, 4] that turns, transposed, and the part [2] that shifts."""
    rows = b.node("Slice", [b.real(index), b.integers(0), b.integers(2), b.integers(1)])
    rows = b.node("Reshape", [rows, b.integers(2, 4)])
    turn = b.node("Transpose", [b.node("Gather", [rows, b.integers(0, 1)], axis=1)], perm=[1, 0])
    return turn, b.node("Gather", [rows, b.constant(np.int64(3))], axis=1)


def crop(b: Builder, op: Operator) -> None:
    """TransformTensorBilinear: the image at the places that a matrix gives, zero outside of it."""
    options, newer = custom_options.mapping(op), op.version >= 2
    if newer:
        high, wide = (custom_options.get(op, options, f"output_{side}", int) for side in ("height", "width"))
    else:
        high, wide = custom_options.get(op, options, "output_size", list)[:2]
    center = np.float32(0.5 if newer else 0)  # of a pixel, from where its place is counted
    turn, shift = _affine(b, op.inputs[1])
    y, x = np.meshgrid(np.arange(high, dtype=np.float32), np.arange(wide, dtype=np.float32), indexing="ij")
    places = b.constant(np.stack([x, y], axis=-1).reshape(-1, 2) + center)
    places = b.node("Sub", [b.node("Add", [b.node("MatMul", [places, turn]), shift]), b.constant(center)])
    places = b.node("Reshape", [places, b.integers(1, high, wide, 2)])
    values = b.real(op.inputs[0], FIRST)
    extents = b.node("Cast", [b.node("Gather", [b.node("Shape", [values]), b.integers(3, 2)])], to=1)
    last = b.node("Sub", [extents, b.constant(np.float32(1))])
    inside = b.node("And", [
        b.node("GreaterOrEqual", [places, b.constant(np.float32(0))]), b.node("LessOrEqual", [places, last])
    ])  # fmt: skip
    inside = b.node("ReduceMin", [b.node("Cast", [inside], to=1), b.integers(3)], keepdims=0)
    inside = b.node("Unsqueeze", [inside, b.integers(1)])
    b.put(op.outputs[0], b.node("Mul", [_sampled(b, values, places, extents), inside]), FIRST)


def _sampled(b: Builder, values: str, places: str, extents: str) -> str:
    """Return ``values`` [batch, channels, y, x] at ``places`` [batch, ., ., 2], x and y in pixels, zero outside."""
    two, one = b.constant(np.float32(2)), b.constant(np.float32(1))
    edges = b.node("Add", [b.node("Mul", [places, two]), one])
    grid = b.node("Sub", [b.node("Div", [edges, extents]), one])
    return b.node("GridSample", [values, grid], mode="linear", padding_mode="zeros", align_corners=0)


def resample(b: Builder, op: Operator) -> None:
    """Resampler: the image at places that are given for each pixel (TensorFlow Addons' resampler)."""
    values = b.real(op.inputs[0], FIRST)
    extents = b.node("Cast", [b.node("Gather", [b.node("Shape", [values]), b.integers(3, 2)])], to=1)
    b.put(op.outputs[0], _sampled(b, values, b.real(op.inputs[1]), extents), FIRST)


def transform_landmarks(b: Builder, op: Operator) -> None:
    """TransformLandmarks: x and y by a matrix; what else a landmark has stays."""
    shape = b.shape(op.inputs[0])
    options, newer = custom_options.mapping(op), op.version >= 2
    size = shape[-1] if newer else custom_options.get(op, options, "dimensions", int, 3)
    scale = 1.0 if newer else custom_options.get(op, options, "scale", float, 1.0)
    if size not in (2, 3) or None in shape[1:]:
        raise unsupported(f"landmarks of {size} numbers, or an open number of them", "a fixed number, of 2 or 3 each")
    turn, shift = _affine(b, op.inputs[1])
    points = b.node("Reshape", [b.real(op.inputs[0]), b.integers(-1, size)])
    flat = b.node("Slice", [points, b.integers(0), b.integers(2), b.integers(1)])
    shift = shift if scale == 1.0 else b.node("Mul", [shift, b.constant(np.float32(scale))])
    flat = b.node("Add", [b.node("MatMul", [flat, turn]), shift])
    if size == 3:
        rest = b.node("Slice", [points, b.integers(2), b.integers(3), b.integers(1)])
        flat = b.node("Concat", [flat, rest], axis=1)
    extents = [-1 if extent is None else extent for extent in shape]
    b.put(op.outputs[0], b.node("Reshape", [flat, b.integers(*extents)]))
