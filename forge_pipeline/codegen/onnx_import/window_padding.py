"""Converters for what moves a window over an image: padding as numbers, so that each kernel pads by itself."""

from __future__ import annotations

from functools import partial
from typing import Any


def windowed(name: str, builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Conv and pools with `auto_pad` as numbers, and without `ceil_mode` where padding says the same.

    TVM's converter pads before a convolution, in float, and of SAME_LOWER takes the floor of a pool's extents.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    if attributes.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER"):
        attributes = {**attributes, "pads": _same_pads(inputs, attributes), "auto_pad": b"NOTSET", "ceil_mode": 0}
    elif attributes.get("ceil_mode") and name in POOLS:
        attributes = {**attributes, **_rounded_up(name, inputs, attributes)}
    if name in POOLS:
        _check_results(inputs, attributes)
    return getattr(onnx_frontend, name).get_converter(opset)(builder, inputs, attributes, [{}, {}])


def _same_pads(inputs: list[Any], attributes: dict[str, Any]) -> tuple[int, ...]:
    """Return the padding with which a result has an extent of ceil(extent / stride), begins first.

    Raises NotImplementedError where it depends on an extent that is not known.
    """
    from tvm import tirx

    sizes = list(inputs[0].ty.shape.values)[2:]
    kernel = attributes.get("kernel_shape") or [int(extent) for extent in inputs[1].ty.shape.values][2:]
    ones = (1,) * len(sizes)
    begins, ends = [], []
    for size, width, stride, dilation in zip(
        sizes, kernel, attributes.get("strides", ones), attributes.get("dilations", ones), strict=True
    ):
        reach = (width - 1) * dilation + 1
        if not isinstance(size, tirx.IntImm) and stride != 1:
            raise NotImplementedError(f"auto_pad with stride {stride} of an extent that is not known")
        over = 0 if stride == 1 else (int(size) - 1) % stride  # pixels after the last window's first
        total = max(reach - 1 - over, 0)
        less, more = total // 2, total - total // 2
        is_upper = attributes["auto_pad"] == b"SAME_UPPER"
        begins.append(less if is_upper else more)
        ends.append(more if is_upper else less)
    return (*begins, *ends)


def _rounded_up(name: str, inputs: list[Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a pool whose number of results is rounded up; most are padded at the end instead.

    A window starts on the image or on the padding before it: ceil((extent + before + after - reach) / stride) + 1
    results, or ceil((extent + before) / stride) if that is less. Both are the results, rounded down, with more padding
    after the image. A mean that counts its padding would count that as well, so it stays as it is.

    Raises NotImplementedError where such a mean has windows that TVM would start behind the image.
    """
    kernel = attributes["kernel_shape"]
    rank, ones = len(kernel), (1,) * len(kernel)
    pads = () if attributes.get("auto_pad") == b"VALID" else tuple(attributes.get("pads", ()))
    pads = pads or (0,) * (2 * rank)
    begins, ends = pads[:rank], pads[rank:]
    strides, dilations = (attributes.get(key, ones) for key in ("strides", "dilations"))
    reaches = [(width - 1) * step + 1 for width, step in zip(kernel, dilations, strict=True)]
    more = [min(after + stride - 1, reach - 1) for after, stride, reach in zip(ends, strides, reaches, strict=True)]
    is_counted = name == "AveragePool" and attributes.get("count_include_pad", 0)
    if not is_counted or more == list(ends):
        return {"pads": (*begins, *more), "ceil_mode": 0, "auto_pad": b"NOTSET"}
    sizes = list(inputs[0].ty.shape.values)[2:]
    kept = map(_without_late, sizes, begins, ends, strides, reaches)
    return {"pads": (*begins, *kept), "auto_pad": b"NOTSET"}


def _check_results(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Raise NotImplementedError for a pool without results: ONNX Runtime may have one where ONNX has none."""
    from tvm import tirx

    kernel = attributes["kernel_shape"]
    ones, pads = (1,) * len(kernel), tuple(attributes.get("pads", ())) or (0,) * (2 * len(kernel))
    sizes = list(inputs[0].ty.shape.values)[2:]
    for axis, (size, width, step) in enumerate(zip(sizes, kernel, attributes.get("dilations", ones), strict=True)):
        padded = size + pads[axis] + pads[axis + len(kernel)]
        if isinstance(padded, tirx.IntImm) and int(padded) <= (width - 1) * step:
            raise NotImplementedError(f"a window of {(width - 1) * step + 1} pixels on {int(padded)}")


def _without_late(size: Any, before: int, after: int, stride: int, reach: int) -> int:
    """Return the padding after an axis with which TVM, rounding up, starts no window behind the image."""
    from tvm import tirx

    if after + stride <= reach:  # none would start there, whatever the extent
        return after
    if isinstance(size, tirx.IntImm):
        results = -(-(int(size) + before) // stride)
        needed = (results - 1) * stride + reach - int(size) - before
        if needed >= 0:
            return min(needed, after)
    raise NotImplementedError("ceil_mode with count_include_pad where a window might start behind the image")


def convert_conv_transpose(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """ConvTranspose with `output_shape`, from which the padding follows; TVM's converter ignores it."""
    from tvm.relax.frontend.onnx.onnx_frontend import ConvTranspose

    if "output_shape" in attributes:
        begins, ends, extra = _transposed_pads(inputs, attributes)
        attributes = {**attributes, "pads": (*begins, *ends), "output_padding": extra, "auto_pad": b"NOTSET"}
        del attributes["output_shape"]
    return ConvTranspose.get_converter(opset)(builder, inputs, attributes, [{}, {}])


def _transposed_pads(inputs: list[Any], attributes: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return begin and end of the padding that gives `output_shape`, and the output padding where it is negative.

    The equations are those of the ONNX operator reference, ConvTranspose-11.
    """
    sizes = [int(extent) for extent in inputs[0].ty.shape.values][2:]
    kernel = [int(extent) for extent in inputs[1].ty.shape.values][2:]
    rank = len(sizes)
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    extra, wanted = attributes.get("output_padding", (0,) * rank), attributes["output_shape"][-rank:]
    rows = []
    for axis in range(rank):
        full = strides[axis] * (sizes[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = full - wanted[axis]
        half = total // 2
        begin, end = (half, total - half) if attributes.get("auto_pad") == b"SAME_UPPER" else (total - half, half)
        if begin < 0:
            raise NotImplementedError("an output_shape that adds rows before the first")
        rows.append((begin, max(end, 0), extra[axis] + max(-end, 0)))
    return tuple(zip(*rows, strict=True))


POOLS = ("MaxPool", "AveragePool")
"""Operators with `ceil_mode` that take windows as they are."""

WINDOWED = {name: partial(windowed, name) for name in ("Conv", "MaxPool", "AveragePool", "LpPool")}
"""Converters by operator."""
