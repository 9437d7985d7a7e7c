"""Operators of com.microsoft that ONNX has since, and others that select and move elements.

Source: ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

TRILU = 14
GRID_SAMPLE = 16
MODES_RENAMED = 20
"""The operator sets that have them, and that which names GridSample's modes linear and cubic."""


def _pad(writer: Writer, node: NodeProto) -> None:
    """Pad (data, pads, value): pads also as (1, 2 * rank), value also with an axis."""
    op = Emitter(writer, node)
    inputs = [op.input(0), op.reshape(op.input(1), -1)]
    if op.input(2):
        inputs.append(op("Reshape", op.input(2), op.constant(np.zeros(0, np.int64))))
    op.result(0, "Pad", *inputs, mode=op.text("mode", "constant"))


def _unique(writer: Writer, node: NodeProto) -> None:
    """Unique (x): values in the order of their first place, where each is among them, how often."""
    op = Emitter(writer, node)
    names = [op.output(0), "", op.output(1), op.output(2)]
    writer.add(helper.make_node("Unique", [op.input(0)], names, name=node.name or op.base, sorted=0))


def _expand_dims(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.give(0, op.unsqueeze(op.input(0), op.whole(op.input(1), "an axis")))


def _range(writer: Writer, node: NodeProto) -> None:
    """Range (start, limit, delta): also vectors of one element."""
    op = Emitter(writer, node)
    bounds = [op.input(0), op.input(1), op.input(2) or op.number(1, op.input(0))]
    op.result(0, "Range", *(op("Reshape", name, op.constant(np.zeros(0, np.int64))) for name in bounds))


def _gather_nd(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.result(0, "GatherND", op.input(0), op.cast(op.input(1), TensorProto.INT64))


def _trilu(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    writer.needs = max(writer.needs, TRILU)
    op.result(0, "Trilu", *node.input, upper=op.integer("upper", 1))


def _grid_sample(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    mode, padding = op.text("mode", "bilinear"), op.text("padding_mode", "zeros")
    op.give(0, _sampled(op, op.input(0), op.input(1), mode, padding, op.integer("align_corners")))


def _sampled(op: Emitter, x: str, grid: str, mode: str, padding: str, align: int) -> str:
    op.writer.needs = max(op.writer.needs, GRID_SAMPLE)
    if op.writer.opset >= MODES_RENAMED:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return op("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=align)


def _crop_and_resize(writer: Writer, node: NodeProto) -> None:
    """CropAndResize (X, rois, batch_indices, crop_size): boxes [y1, x1, y2, x2] in units of the image's size less one.

    The pixels of a crop lie evenly between both corners, a single one in the middle; what lies outside of the image is
    ``extrapolation_value``.
    """
    op = Emitter(writer, node)
    x, boxes, images = op.input(0), op.input(1), op.input(2)
    sizes = op.array(op.input(3), "a size").reshape(-1)
    if sizes.size != 2:
        raise Unusual(f"crops of {sizes.size} axes")
    height, width = (int(size) for size in sizes)
    if min(height, width) < 1 or op.text("mode", "bilinear") != "bilinear":
        raise Unusual(f"crops of {height} x {width}, {op.text('mode', 'bilinear')}")
    y, x_ = (_evenly(op, boxes, axis, size) for axis, size in ((0, height), (1, width)))
    rows = op("Expand", op.unsqueeze(y, 2, 3), op.integers(1, 1, width, 1))
    columns = op("Expand", op.unsqueeze(x_, 1, 3), op.integers(1, height, 1, 1))
    grid = op.concat(columns, rows, axis=3)
    two, one = op.number(2.0, x), op.number(1.0, x)
    around = op("Sub", op("Mul", grid, two), one)
    picked = op("Gather", x, images, axis=0)
    crops = _sampled(op, picked, around, "bilinear", "border", 1)
    far = op.reduce("ReduceMax", op("Abs", around), (3,), keepdims=False)
    is_inside = op.unsqueeze(op("LessOrEqual", far, one), 1)
    op.result(0, "Where", is_inside, crops, op.number(op.real("extrapolation_value"), x))


def _evenly(op: Emitter, boxes: str, axis: int, size: int) -> str:
    """Return the places of pixels along an axis, (boxes, size), between the corners at ``axis`` and ``axis + 2``."""
    first, last = (op.part(boxes, place, place + 1, 1) for place in (axis, axis + 2))
    steps = np.linspace(0.0, 1.0, size) if size > 1 else np.array([0.5])
    weights = op.constant(steps.astype(helper.tensor_dtype_to_np_dtype(op.kind(boxes)))[None])
    return op("Add", first, op("Mul", op("Sub", last, first), weights))


def _unfold(writer: Writer, node: NodeProto) -> None:
    """UnfoldTensor: all windows of ``size`` elements along an axis, ``step`` apart, in an axis of their own behind."""
    op = Emitter(writer, node)
    x, size, step = op.input(0), op.integer("size"), op.integer("step", 1)
    rank = op.rank(x, "an operand")
    axis = op.integer("dim", -1) % max(rank, 1)
    if size < 1 or step < 1 or not rank:
        raise Unusual(f"windows of {size} elements, {step} apart")
    last = op("Sub", op.length(x, axis), op.integers(size - 1))
    starts = op("Range", op.index(0), op.squeeze(last, 0), op.index(step))
    places = op("Add", op.unsqueeze(starts, 1), op.constant(np.arange(size)))
    windows = op("Gather", x, places, axis=axis)
    order = [place for place in range(rank + 1) if place != axis + 1]
    op.give(0, op.transpose(windows, *order, axis + 1))


RULES = {
    "CropAndResize": _crop_and_resize,
    "ExpandDims": _expand_dims,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "Pad": _pad,
    "Range": _range,
    "Trilu": _trilu,
    "UnfoldTensor": _unfold,
    "Unique": _unique,
}
"""How to write out each operator of com.microsoft."""
