"""TensorFlow Lite's operators that move numbers, change their type or look at shapes, each as ONNX.

Where operand and result mean the same by an integer, the integers are moved as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, LAST, TO_FIRST, Builder, onnx_type, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator

Convert = Callable[[Builder, Operator], None]
_MAX = (1 << 63) - 1


def _read(b: Builder, op: Operator, index: int, layout: str = LAST) -> str:
    """Read an operand for a move: as it is stored where the result is stored alike, else as real numbers."""
    return b.stored(index, layout) if _alike(b, op, index) else b.real(index, layout)


def _alike(b: Builder, op: Operator, index: int) -> bool:
    given, result = b.tensor(index), b.tensor(op.outputs[0])
    if given.quantization is None or result.quantization is None:
        return given.quantization is result.quantization or given.dtype == result.dtype == "int32"
    return given.dtype == result.dtype and given.quantization.same(result.quantization)


def _write(b: Builder, op: Operator, name: str, layout: str = LAST) -> None:
    if all(_alike(b, op, index) for index in _moved(b, op)):
        b.give(op.outputs[0], name, layout)
    else:
        b.put(op.outputs[0], name, layout)


def _moved(b: Builder, op: Operator) -> list[int]:
    """Return the operands whose numbers are moved: all of a concatenation, else the first."""
    return list(op.inputs) if op.name in ("CONCATENATION", "PACK") else [op.inputs[_FIRST_VALUE.get(op.name, 0)]]


_FIRST_VALUE = {"SPLIT": 1}


def reshape(b: Builder, op: Operator) -> None:
    """RESHAPE: the shape is the result's own; an open batch stays open. Two open sizes have to be computed."""
    shape = b.shape(op.outputs[0])
    layout = LAST
    given = b.shape(op.inputs[0])
    if len(given) == 4 and given[1:3] == (1, 1):
        layout = b.layout(op.inputs[0])  # one pixel: the same order in both layouts
    values = _read(b, op, op.inputs[0], layout)
    constant = len(op.inputs) < 2 or b.tensor(op.inputs[1]).data is not None
    if sum(extent is None for extent in shape) <= 1 and constant:
        target = b.integers(*(-1 if extent is None else extent for extent in shape))
    elif not constant:
        target = b.node("Cast", [b.stored(op.inputs[1])], to=7)
    else:
        raise unsupported("a constant shape with two open sizes", "at most one open size")
    _write(b, op, b.node("Reshape", [values, target]))


def squeeze(b: Builder, op: Operator) -> None:
    """SQUEEZE."""
    rank = len(b.shape(op.inputs[0]))
    axes = [int(op.options.SqueezeDims(i)) % rank for i in range(op.options.SqueezeDimsLength())] if op.options else []
    axes = axes or [axis for axis, extent in enumerate(b.shape(op.inputs[0])) if extent == 1]
    _write(b, op, b.node("Squeeze", [_read(b, op, op.inputs[0]), b.integers(*axes)]))


def expand_dims(b: Builder, op: Operator) -> None:
    """EXPAND_DIMS."""
    axis = int(b.data(op.inputs[1], "axis").reshape(-1)[0])
    _write(b, op, b.node("Unsqueeze", [_read(b, op, op.inputs[0]), b.integers(axis)]))


def transpose(b: Builder, op: Operator) -> None:
    """TRANSPOSE."""
    order = [int(axis) for axis in b.data(op.inputs[1], "order of axes")]
    _write(b, op, b.node("Transpose", [_read(b, op, op.inputs[0])], perm=order))


def concatenation(b: Builder, op: Operator) -> None:
    """CONCATENATION, in the layout that all its operands share."""
    rank, axis = len(b.shape(op.outputs[0])), int(option(op, "Axis", 0))
    layout = b.layout(*op.inputs)
    axis %= rank
    alike = all(_alike(b, op, index) for index in op.inputs)
    names = [b.stored(index, layout) if alike else b.real(index, layout) for index in op.inputs]
    name = b.node("Concat", names, axis=TO_FIRST.index(axis) if layout == FIRST else axis)
    if kind := option(op, "FusedActivationFunction", 0):
        if alike and b.is_quantized(op.outputs[0]):
            raise unsupported("a fused activation on integers", "none")
        name = b.activated(name, kind, op.outputs[0])
    _write(b, op, name, layout)


def split(b: Builder, op: Operator) -> None:
    """SPLIT: operands are the axis and the values."""
    axis = int(b.data(op.inputs[0], "axis").reshape(-1)[0])
    _parts(b, op, op.inputs[1], axis, [])


def split_v(b: Builder, op: Operator) -> None:
    """SPLIT_V: operands are the values, the sizes and the axis."""
    axis = int(b.data(op.inputs[2], "axis").reshape(-1)[0])
    sizes = [int(size) for size in b.data(op.inputs[1], "list of sizes").reshape(-1)]
    if -1 in sizes:
        whole = b.shape(op.inputs[0])[axis]
        if whole is None:
            raise unsupported("a part of open size", "sizes that are fixed")
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size >= 0)
    _parts(b, op, op.inputs[0], axis, sizes)


def _parts(b: Builder, op: Operator, index: int, axis: int, sizes: Sequence[int]) -> None:
    count = len(op.outputs)
    operands = [_read(b, op, index), *([b.integers(*sizes)] if sizes else [])]
    name = b.node("Split", operands, count, axis=axis)  # without sizes: equal parts
    for position in range(count):
        part = name if position == 0 else f"{name}_{position}"
        one = replace(op, outputs=(op.outputs[position],))
        b.give(op.outputs[position], part) if _alike(b, one, index) else b.put(op.outputs[position], part)


def pack(b: Builder, op: Operator) -> None:
    """PACK: a new axis."""
    axis = int(option(op, "Axis", 0))
    alike = all(_alike(b, op, index) for index in op.inputs)
    names = [b.stored(index) if alike else b.real(index) for index in op.inputs]
    names = [b.node("Unsqueeze", [name, b.integers(axis)]) for name in names]
    _write(b, op, b.node("Concat", names, axis=axis))


def unpack(b: Builder, op: Operator) -> None:
    """UNPACK: an axis less."""
    axis = int(option(op, "Axis", 0))
    values = _read(b, op, op.inputs[0])
    for position, index in enumerate(op.outputs):
        b.give(index, b.node("Gather", [values, b.constant(np.array(position, np.int64))], axis=axis))


def slice_(b: Builder, op: Operator) -> None:
    """SLICE: begins and sizes; a size of -1 goes to the end."""
    begins, sizes = (b.data(index, "range").reshape(-1).astype(np.int64) for index in op.inputs[1:3])
    ends = [_MAX if size < 0 else int(begin + size) for begin, size in zip(begins, sizes, strict=True)]
    operands = [_read(b, op, op.inputs[0]), b.constant(begins), b.integers(*ends), b.integers(*range(len(ends)))]
    _write(b, op, b.node("Slice", operands))


def strided_slice(b: Builder, op: Operator) -> None:
    """STRIDED_SLICE without ellipsis and new axes."""
    if option(op, "EllipsisMask", 0) or option(op, "NewAxisMask", 0) or option(op, "Offset", False):
        raise unsupported("an ellipsis, a new axis or offsets", "begins, ends and strides")
    begins, ends, steps = (b.data(index, "range").reshape(-1).astype(np.int64).tolist() for index in op.inputs[1:4])
    shrunk = []
    for axis in range(len(begins)):
        if option(op, "ShrinkAxisMask", 0) >> axis & 1:
            shrunk.append(axis)
            ends[axis] = begins[axis] + 1 if begins[axis] != -1 else _MAX
            steps[axis] = 1
            continue
        forward = steps[axis] > 0
        if option(op, "BeginMask", 0) >> axis & 1:
            begins[axis] = 0 if forward else _MAX
        if option(op, "EndMask", 0) >> axis & 1:
            ends[axis] = _MAX if forward else -_MAX
    operands = [b.integers(*begins), b.integers(*ends), b.integers(*range(len(begins))), b.integers(*steps)]
    name = b.node("Slice", [_read(b, op, op.inputs[0]), *operands])
    if shrunk:
        name = b.node("Squeeze", [name, b.integers(*shrunk)])
    _write(b, op, name)


def gather(b: Builder, op: Operator) -> None:
    """GATHER along one axis."""
    if option(op, "BatchDims", 0):
        raise unsupported("batch dimensions", "none")
    operands = [_read(b, op, op.inputs[0]), b.stored(op.inputs[1])]
    _write(b, op, b.node("Gather", operands, axis=int(option(op, "Axis", 0))))


def pad(b: Builder, op: Operator) -> None:
    """PAD, PADV2, in either layout. Integers are padded with what stands for the number."""
    pads = b.data(op.inputs[1], "list of pads").astype(np.int64)
    layout = b.layout(op.inputs[0])
    ordered = pads[list(TO_FIRST)] if layout == FIRST else pads
    values = b.real(op.inputs[0], layout)
    amounts = b.integers(*ordered[:, 0].tolist(), *ordered[:, 1].tolist())
    filler = [b.real(op.inputs[2])] if len(op.inputs) > 2 else []
    b.put(op.outputs[0], b.node("Pad", [values, amounts, *filler]), layout)


def mirror_pad(b: Builder, op: Operator) -> None:
    """MIRROR_PAD that leaves the border out (REFLECT)."""
    if option(op, "Mode", 0) != 0:
        raise unsupported("a symmetric mirror", "REFLECT")
    pads = b.data(op.inputs[1], "list of pads").astype(np.int64)
    amounts = b.integers(*pads[:, 0].tolist(), *pads[:, 1].tolist())
    b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0]), amounts], mode="reflect"))


def tile(b: Builder, op: Operator) -> None:
    """TILE."""
    times = b.data(op.inputs[1], "number of times").astype(np.int64)
    _write(b, op, b.node("Tile", [_read(b, op, op.inputs[0]), b.constant(times)]))


def broadcast_to(b: Builder, op: Operator) -> None:
    """BROADCAST_TO."""
    shape = b.node("Cast", [b.stored(op.inputs[1])], to=7)
    _write(b, op, b.node("Expand", [_read(b, op, op.inputs[0]), shape]))


def shape(b: Builder, op: Operator) -> None:
    """SHAPE."""
    b.give(op.outputs[0], b.cast(b.node("Shape", [b.stored(op.inputs[0])]), b.tensor(op.outputs[0]).dtype))


def fill(b: Builder, op: Operator) -> None:
    """FILL."""
    target = b.node("Cast", [b.stored(op.inputs[0])], to=7)
    _write(b, replace(op, inputs=(op.inputs[1],)), b.node("Expand", [b.stored(op.inputs[1]), target]))


def cast(b: Builder, op: Operator) -> None:
    """CAST."""
    b.give(op.outputs[0], b.node("Cast", [b.stored(op.inputs[0])], to=onnx_type(b.tensor(op.outputs[0]).dtype)))


def select(b: Builder, op: Operator) -> None:
    """SELECT_V2, and SELECT where its condition has the others' rank."""
    if op.name == "SELECT" and len(b.shape(op.inputs[0])) != len(b.shape(op.inputs[1])):
        raise unsupported("a condition of fewer dimensions", "a condition of as many dimensions")
    b.put(op.outputs[0], b.node("Where", [b.stored(op.inputs[0]), b.real(op.inputs[1]), b.real(op.inputs[2])]))


def quantize(b: Builder, op: Operator) -> None:
    """QUANTIZE: real numbers, or integers of another scale, to integers."""
    layout = b.layout(op.inputs[0])
    b.put(op.outputs[0], b.real(op.inputs[0], layout), layout)


def dequantize(b: Builder, op: Operator) -> None:
    """DEQUANTIZE: of weights in half precision or integers, so that who uses them sees a constant; of values."""
    given = b.tensor(op.inputs[0])
    if given.data is not None:
        b.alias(op.outputs[0], op.inputs[0])
        return
    layout = b.layout(op.inputs[0])
    name = b.real(op.inputs[0], layout)
    if given.dtype == "float16":
        name = b.node("Cast", [name], to=1)
    b.give(op.outputs[0], name, layout)


def resize(mode: str) -> Convert:
    """RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR to a constant size."""

    def convert(b: Builder, op: Operator) -> None:
        height, width = (int(size) for size in b.data(op.inputs[1], "size").reshape(-1))
        corners, centers = option(op, "AlignCorners", False), option(op, "HalfPixelCenters", False)
        way = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
        extra: dict[str, Any] = (
            {"nearest_mode": "round_prefer_ceil" if corners or centers else "floor"} if mode == "nearest" else {}
        )
        if mode == "nearest" and centers:
            way, extra = "half_pixel", {"nearest_mode": "round_prefer_ceil"}
        values = b.real(op.inputs[0], FIRST)
        batch_and_channels = b.node("Slice", [b.node("Shape", [values]), b.integers(0), b.integers(2)])
        sizes = b.node("Concat", [batch_and_channels, b.integers(height, width)], axis=0)
        operands = [values, "", "", sizes]
        name = b.node("Resize", operands, mode=mode, coordinate_transformation_mode=way, **extra)
        b.put(op.outputs[0], name, FIRST)

    return convert


def depth_to_space(b: Builder, op: Operator) -> None:
    """DEPTH_TO_SPACE: with the channels last, a block's channels come first: ONNX calls it DCR."""
    values = _read(b, op, op.inputs[0], FIRST)
    _write(b, op, b.node("DepthToSpace", [values], blocksize=op.options.BlockSize(), mode="DCR"), FIRST)


def space_to_depth(b: Builder, op: Operator) -> None:
    """SPACE_TO_DEPTH."""
    values = b.real(op.inputs[0], FIRST)
    b.put(op.outputs[0], b.node("SpaceToDepth", [values], blocksize=op.options.BlockSize()), FIRST)
