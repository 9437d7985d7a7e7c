"""Convolution, pooling, resizing and sampling: extents of what windows go over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes import real
from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.real import Real
from forge_pipeline.ir.sizes.rules.elementwise import whole_of
from forge_pipeline.ir.sizes.rules.shapes import numbers
from forge_pipeline.ir.sizes.value import Known, Shape


def windows(op: Operation, sizes: Shape, kernel: Shape, *, ceil: bool = False) -> list[Whole]:
    """Return how many places a window has on each axis, by strides, dilations and pads or ``auto_pad``."""
    count = len(sizes)
    strides = [int(entry) for entry in op.attribute("strides", [1] * count)]
    dilations = [int(entry) for entry in op.attribute("dilations", [1] * count)]
    pads = [int(entry) for entry in op.attribute("pads", [0] * (2 * count))]
    mode = op.attribute("auto_pad", "NOTSET")
    result: list[Whole] = []
    for axis, size in enumerate(sizes):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            result.append(e.ceildiv(size, strides[axis]))
            continue
        before = 0 if mode == "VALID" else pads[axis]
        around = 0 if mode == "VALID" else pads[axis] + pads[axis + count]
        room = size + around - reach
        text = f"{op.title}: axis {axis + 2} is smaller than the window"
        op.context.require_not_negative(room + strides[axis] - 1 if ceil else room, text)
        if ceil and strides[axis] > 1:
            places = e.ceildiv(room, strides[axis]) + 1
            behind = e.at_least((places - 1) * strides[axis], size + before)
            result.append(places - behind)  # a window does not start behind the data
        else:
            result.append(e.floordiv(room, strides[axis]) + 1)
    return result


def convolved(op: Operation, data: Shape, weight: Shape) -> Shape:
    """Return the shape of a convolution of data with a kernel, channels behind the batch."""
    group = int(op.attribute("group", 1))
    op.require_equal(data[1], weight[1] * group, "the channels of data and kernel differ")
    return (op.context.resolve(data[0]), weight[0], *windows(op, data[2:], weight[2:]))


def conv(op: Operation) -> Sequence[Known]:
    """Conv."""
    return [Known(op.input(0).dtype, convolved(op, needed(op.shape(0)), needed(op.shape(1))))]


def conv_integer(op: Operation) -> Sequence[Known]:
    """ConvInteger: int32."""
    return [Known(TensorProto.INT32, convolved(op, needed(op.shape(0)), needed(op.shape(1))))]


def qlinear_conv(op: Operation) -> Sequence[Known]:
    """QLinearConv: the type of the result's zero point."""
    return [Known(op.input(7).dtype, convolved(op, needed(op.shape(0)), needed(op.shape(3))))]


def conv_transpose(op: Operation) -> Sequence[Known]:
    """ConvTranspose."""
    data, weight = needed(op.shape(0)), needed(op.shape(1))
    op.require_equal(data[1], weight[0], "the channels of data and kernel differ")
    count = len(data) - 2
    strides = [int(entry) for entry in op.attribute("strides", [1] * count)]
    dilations = [int(entry) for entry in op.attribute("dilations", [1] * count)]
    extra = [int(entry) for entry in op.attribute("output_padding", [0] * count)]
    pads = [int(entry) for entry in op.attribute("pads", [0] * (2 * count))]
    mode, stated = op.attribute("auto_pad", "NOTSET"), op.attribute("output_shape")
    result: list[Whole] = []
    for axis, size in enumerate(data[2:]):
        if stated is not None:
            result.append(int(stated[-count:][axis]))
        elif mode in ("SAME_UPPER", "SAME_LOWER"):
            result.append(size * strides[axis])
        else:
            reach = (weight[axis + 2] - 1) * dilations[axis] + 1
            around = 0 if mode == "VALID" else pads[axis] + pads[axis + count]
            result.append((size - 1) * strides[axis] + extra[axis] + reach - around)
    channels = weight[1] * int(op.attribute("group", 1))
    return [Known(op.input(0).dtype, (op.context.resolve(data[0]), channels, *result))]


def pool(op: Operation) -> Sequence[Known]:
    """MaxPool, AveragePool, LpPool; MaxPool's second result is where the maxima are."""
    data = needed(op.shape(0))
    kernel = tuple(int(entry) for entry in op.attribute("kernel_shape"))
    shape = (*data[:2], *windows(op, data[2:], kernel, ceil=bool(op.attribute("ceil_mode", 0))))
    return [Known(op.input(0).dtype, shape), Known(TensorProto.INT64, shape)]


def global_pool(op: Operation) -> Sequence[Known]:
    """Pool over all of the space."""
    data = needed(op.shape(0))
    return [Known(op.input(0).dtype, (*data[:2], *(1 for _ in data[2:])))]


def resize(op: Operation) -> Sequence[Known]:
    """Resize and Upsample: by sizes, or by scales, whose product with an extent is rounded down in float32."""
    given, shape = op.input(0), needed(op.shape(0))
    axes = [int(axis) % len(shape) for axis in op.attribute("axes", range(len(shape)))]
    sizes = op.input(3).contents if op.has(3) else None
    if sizes is not None and sizes.size:
        if op.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            return [Known(given.dtype, _replaced(shape, axes, _kept_ratio(op, shape, axes, sizes.tolist())))]
        return [Known(given.dtype, _replaced(shape, axes, sizes.reshape(-1).tolist()))]
    scales = _scales(op)
    if scales is None:
        return [Known(given.dtype, _replaced(shape, axes, [op.fresh(str(axis)) for axis in axes]))]
    return [
        Known(given.dtype, _replaced(shape, axes, [scaled(op, shape[a], s) for a, s in zip(axes, scales, strict=True)]))
    ]


def _scales(op: Operation) -> list[Real | float] | None:
    stated = op.attribute("scales")
    if stated is not None:
        return [float(entry) for entry in stated]
    index = 1 if op.node.op_type == "Upsample" or op.opset < 11 else 2
    found = op.input(index).contents if op.has(index) and not op.has(3) else None
    return None if found is None or not found.size else found.reshape(-1).tolist()


def scaled(op: Operation, size: Whole, scale: Real | float | Whole) -> Whole:
    """Return an extent times a float32 scale, rounded down."""
    if scale == 1.0:
        return size
    if isinstance(scale, (int, float)):
        factor = real.of_number(float(scale), "float32")
    elif isinstance(scale, Size):
        factor = real.of_size(scale, "float32")
    else:
        factor = scale
    exact = real.apply("mul", "float32", real.of_size(size, "float32"), factor)
    return whole_of(op, real.apply("floor", "float32", exact))


def _kept_ratio(op: Operation, shape: Shape, axes: list[int], sizes: list[Whole]) -> list[Whole]:
    """Return sizes with one scale for all axes: the least or the greatest of those that were asked for."""
    known, wanted = numbers(tuple(shape[axis] for axis in axes)), numbers(tuple(sizes))
    if known is None or wanted is None:
        return [op.fresh(str(axis)) for axis in axes]
    ratios = [size / old for size, old in zip(wanted, known, strict=True)]
    scale = min(ratios) if op.attribute("keep_aspect_ratio_policy") == "not_larger" else max(ratios)
    return [int(scale * old + 0.5) for old in known]


def _replaced(shape: Shape, axes: list[int], sizes: Sequence[Whole]) -> Shape:
    if len(axes) != len(sizes):
        raise Unknown
    new = dict(zip(axes, sizes, strict=True))
    return tuple(new.get(axis, size) for axis, size in enumerate(shape))


def grid_sample(op: Operation) -> Sequence[Known]:
    """Sample at the points of a grid."""
    data, grid = needed(op.shape(0)), needed(op.shape(1))
    batch = op.require_equal(data[0], grid[0], "the batches of data and grid differ")
    return [Known(op.input(0).dtype, (batch, data[1], *(op.context.resolve(size) for size in grid[1:-1])))]


RULES: Final[Mapping[str, Rule]] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
    "ConvTranspose": conv_transpose,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), global_pool),
    "Resize": resize,
    "Upsample": resize,
    "GridSample": grid_sample,
}
