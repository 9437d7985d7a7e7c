"""TensorFlow Lite's operators that cut a part out, or put a border around, each as ONNX."""

from __future__ import annotations

from typing import Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, TO_FIRST, Builder, option, options, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.data_movement import MOST, read, write

_SYMMETRIC: Final = 1  # MirrorPadMode; 0 is REFLECT


def slice_(b: Builder, op: Operator) -> None:
    """SLICE: begins and sizes; a size of -1 goes to the end."""
    rank = b.rank(op.inputs[0])
    if all(b.tensor(index).data is not None for index in op.inputs[1:3]):
        begins, sizes = (b.data(index, "range").reshape(-1).astype(np.int64) for index in op.inputs[1:3])
        ends = [MOST if size < 0 else int(begin + size) for begin, size in zip(begins, sizes, strict=True)]
        operands = [b.constant(begins), b.integers(*ends)]
    else:
        begin, size = (b.int64(index) for index in op.inputs[1:3])
        open_ended = b.node("Less", [size, b.constant(np.int64(0))])
        end = b.node("Where", [open_ended, b.constant(np.int64(MOST)), b.node("Add", [begin, size])])
        operands = [begin, end]
    write(b, op, b.node("Slice", [read(b, op, op.inputs[0]), *operands, b.integers(*range(rank))]))


def strided_slice(b: Builder, op: Operator) -> None:
    """STRIDED_SLICE: each entry of the ranges is for an axis, a new axis, or all axes that no other is for."""
    if option(op, "Offset", False):
        raise unsupported("ends that count from the begins", "ends that count from the start")
    entries = _entries(b, op)
    new, shrunk = option(op, "NewAxisMask", 0), option(op, "ShrinkAxisMask", 0)
    cut = [(entry, axis) for entry, axis in entries if axis is not None]
    value = read(b, op, op.inputs[0])
    if cut:
        operands = _ranges(b, op, [entry for entry, _ in cut])
        value = b.node("Slice", [value, *operands[:2], b.integers(*(axis for _, axis in cut)), operands[2]])
    if gone := [axis for entry, axis in cut if shrunk >> entry & 1]:
        value = b.node("Squeeze", [value, b.integers(*gone)])
    if added := _added(entries, new, shrunk, b.rank(op.inputs[0])):
        value = b.node("Unsqueeze", [value, b.integers(*added)])
    write(b, op, value)


def _entries(b: Builder, op: Operator) -> list[tuple[int, int | None]]:
    """Return each entry of the ranges with the axis it is for; None where it is a new axis or all others."""
    count = b.shape(op.inputs[1])[0]
    if count is None:
        raise unsupported("a range for an open number of axes", "a fixed number")
    new, ellipsis = option(op, "NewAxisMask", 0), option(op, "EllipsisMask", 0)
    named = sum(not (ellipsis | new) >> entry & 1 for entry in range(count))
    entries: list[tuple[int, int | None]] = []
    axis = 0
    for entry in range(count):
        if ellipsis >> entry & 1:
            axis += b.rank(op.inputs[0]) - named
            entries.append((entry, None))
        elif new >> entry & 1:
            entries.append((entry, None))
        else:
            entries.append((entry, axis))
            axis += 1
    return entries


def _added(entries: list[tuple[int, int | None]], new: int, shrunk: int, rank: int) -> list[int]:
    """Return where new axes are in the result."""
    named = sum(axis is not None for _, axis in entries)
    added, place = [], 0
    for entry, axis in entries:
        if axis is not None:
            place += not shrunk >> entry & 1
        elif new >> entry & 1:
            added.append(place)
            place += 1
        else:
            place += rank - named
    return added


def _ranges(b: Builder, op: Operator, entries: list[int]) -> list[str]:
    """Return begins, ends and strides of ``entries``: masks leave an end open, a shrunk axis keeps one place."""
    masks = {name: option(op, f"{name}Mask", 0) for name in ("Begin", "End", "ShrinkAxis")}
    flags = {name: np.array([mask >> entry & 1 for entry in entries], bool) for name, mask in masks.items()}
    steps = b.data(op.inputs[3], "stride").reshape(-1).astype(np.int64)[entries]
    steps = np.where(flags["ShrinkAxis"], 1, steps)
    first, last = np.where(steps > 0, 0, MOST), np.where(steps > 0, MOST, -MOST)
    free_begin = flags["Begin"] & ~flags["ShrinkAxis"]
    if all(b.tensor(index).data is not None for index in op.inputs[1:3]):
        begins, ends = (b.data(index, "range").reshape(-1).astype(np.int64)[entries] for index in op.inputs[1:3])
        begins = np.where(free_begin, first, begins)
        ends = np.where(flags["End"], last, ends)
        ends = np.where(flags["ShrinkAxis"], np.where(begins == -1, MOST, begins + 1), ends)
        return [b.constant(begins), b.constant(ends), b.constant(steps)]
    picks = b.integers(*entries)
    begin, end = (b.node("Gather", [b.int64(index), picks]) for index in op.inputs[1:3])
    begin = b.node("Where", [b.constant(free_begin), b.constant(first), begin])
    end = b.node("Where", [b.constant(flags["End"]), b.constant(last), end])
    if flags["ShrinkAxis"].any():
        is_last = b.node("Equal", [begin, b.constant(np.int64(-1))])
        after = b.node("Where", [is_last, b.constant(np.int64(MOST)), b.node("Add", [begin, b.integers(1)])])
        end = b.node("Where", [b.constant(flags["ShrinkAxis"]), after, end])
    return [begin, end, b.constant(steps)]


def pad(b: Builder, op: Operator) -> None:
    """PAD, PADV2, in either layout. Integers are padded with what stands for the number."""
    pads = b.tensor(op.inputs[1]).data
    filler = [b.real(op.inputs[2])] if len(op.inputs) > 2 and op.inputs[2] >= 0 else []
    if filler and b.rank(op.inputs[2]):
        filler = [b.node("Reshape", [*filler, b.constant(np.zeros(0, np.int64))])]
    if pads is None:
        amounts = b.node("Reshape", [b.node("Transpose", [b.int64(op.inputs[1])], perm=[1, 0]), b.integers(-1)])
        b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0]), amounts, *filler]))
        return
    layout = b.layout(op.inputs[0])
    ordered = pads[list(TO_FIRST)] if layout == FIRST else pads
    amounts = b.integers(*ordered[:, 0].tolist(), *ordered[:, 1].tolist())
    b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0], layout), amounts, *filler]), layout)


def edge_pad(b: Builder, op: Operator) -> None:
    """STABLEHLO_PAD without interior padding; a negative pad cuts off, in ONNX too."""
    if any(options(op, "InteriorPadding")):
        raise unsupported("padding between numbers", "padding around them")
    amounts = b.integers(*options(op, "EdgePaddingLow"), *options(op, "EdgePaddingHigh"))
    b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0]), amounts, b.real(op.inputs[1])]))


def mirror_pad(b: Builder, op: Operator) -> None:
    """MIRROR_PAD that leaves the border out (REFLECT), or repeats it (SYMMETRIC), which ONNX's Pad does not know."""
    pads = b.data(op.inputs[1], "list of pads").astype(np.int64)
    if option(op, "Mode", 0) != _SYMMETRIC:
        amounts = b.integers(*pads[:, 0].tolist(), *pads[:, 1].tolist())
        b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0]), amounts], mode="reflect"))
        return
    name = read(b, op, op.inputs[0])
    for axis, (before, after) in enumerate(pads.tolist()):
        if before or after:
            name = b.node("Concat", [*_mirrored(b, name, axis, before, after)], axis=axis)
    write(b, op, name)


def _mirrored(b: Builder, name: str, axis: int, before: int, after: int) -> list[str]:
    parts = [name]
    if before:
        operands = [b.integers(before - 1), b.integers(-MOST), b.integers(axis), b.integers(-1)]
        parts.insert(0, b.node("Slice", [name, *operands]))
    if after:
        operands = [b.integers(-1), b.integers(-after - 1), b.integers(axis), b.integers(-1)]
        parts.append(b.node("Slice", [name, *operands]))
    return parts


def update_slice(b: Builder, op: Operator) -> None:
    """DYNAMIC_UPDATE_SLICE: a part is replaced; it is moved inside where it would reach beyond the end."""
    operand, update = read(b, op, op.inputs[0]), read(b, op, op.inputs[1])
    extents = b.shape(op.inputs[1])
    if any(extent is None for extent in extents):
        raise unsupported("a part of open size", "a part of fixed size")
    sizes = [extent for extent in extents if extent is not None]
    limit = b.node("Sub", [b.node("Shape", [operand]), b.integers(*sizes)])
    begin = b.node("Max", [b.node("Min", [b.int64(op.inputs[2]), limit]), b.integers(0)])
    grid = np.stack(np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij"), axis=-1).astype(np.int64)
    write(b, op, b.node("ScatterND", [operand, b.node("Add", [b.constant(grid), begin]), update]))
