"""TensorFlow Lite's operators that make images larger or smaller, or trade their sizes for one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, Builder, Converter, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.data_movement import read, write


def resize(mode: str) -> Converter:
    """RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR."""

    def convert(b: Builder, op: Operator) -> None:
        corners, centers = option(op, "AlignCorners", False), option(op, "HalfPixelCenters", False)
        transformation = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
        extra: dict[str, Any] = (
            {"nearest_mode": "round_prefer_ceil" if corners or centers else "floor"} if mode == "nearest" else {}
        )
        if mode == "nearest" and centers:
            transformation, extra = "half_pixel", {"nearest_mode": "round_prefer_ceil"}
        values = b.real(op.inputs[0], FIRST)
        sizes = b.node("Concat", [b.node("Shape", [values], end=2), b.int64(op.inputs[1])], axis=0)
        operands = [values, "", "", sizes]
        name = b.node("Resize", operands, mode=mode, coordinate_transformation_mode=transformation, **extra)
        b.put(op.outputs[0], name, FIRST)

    return convert


def depth_to_space(b: Builder, op: Operator) -> None:
    """DEPTH_TO_SPACE: with the channels last, a block's channels come first: ONNX calls it DCR."""
    values = read(b, op, op.inputs[0], FIRST)
    write(b, op, b.node("DepthToSpace", [values], blocksize=op.options.BlockSize(), mode="DCR"), FIRST)


def space_to_depth(b: Builder, op: Operator) -> None:
    """SPACE_TO_DEPTH."""
    values = b.real(op.inputs[0], FIRST)
    b.put(op.outputs[0], b.node("SpaceToDepth", [values], blocksize=op.options.BlockSize()), FIRST)


def space_to_batch(b: Builder, op: Operator) -> None:
    """SPACE_TO_BATCH_ND: pads, then moves each place of a block into the batch."""
    shape, blocks = b.shape(op.inputs[0]), _integers(b, op.inputs[1], "block")
    pads = np.array(_integers(b, op.inputs[2], "list of pads")).reshape(-1, 2)
    rest = len(shape) - 1 - len(blocks)
    values = b.real(op.inputs[0])  # what is put around the numbers is 0, not the integer 0
    if pads.any():
        amounts = b.integers(0, *pads[:, 0].tolist(), *[0] * rest, 0, *pads[:, 1].tolist(), *[0] * rest)
        values = b.node("Pad", [values, amounts])
    split, after = [-1], [-1]
    for extent, block, (low, high) in zip(shape[1:], blocks, pads.tolist(), strict=False):
        if extent is None:
            raise unsupported("blocks of an open size", "a fixed size")
        split += [(extent + low + high) // block, block]
        after.append((extent + low + high) // block)
    kept = _fixed(shape[1 + len(blocks) :])
    count = len(blocks)
    order = [2 * i + 2 for i in range(count)] + [0] + [2 * i + 1 for i in range(count)]
    order += [2 * count + 1 + i for i in range(rest)]
    name = b.node("Transpose", [b.node("Reshape", [values, b.integers(*split, *kept)])], perm=order)
    b.put(op.outputs[0], b.node("Reshape", [name, b.integers(*after, *kept)]))


def batch_to_space(b: Builder, op: Operator) -> None:
    """BATCH_TO_SPACE_ND: the reverse, then cuts off."""
    shape, blocks = b.shape(op.inputs[0]), _integers(b, op.inputs[1], "block")
    crops = np.array(_integers(b, op.inputs[2], "list of crops")).reshape(-1, 2)
    count, spatial = len(blocks), _fixed(shape[1 : 1 + len(blocks)])
    kept = _fixed(shape[1 + count :])
    split = b.integers(*blocks, -1, *spatial, *kept)
    order = [count]
    for place in range(count):
        order += [count + 1 + place, place]
    order += [2 * count + 1 + place for place in range(len(kept))]
    name = b.node("Transpose", [b.node("Reshape", [read(b, op, op.inputs[0]), split])], perm=order)
    whole = [extent * block for extent, block in zip(spatial, blocks, strict=True)]
    name = b.node("Reshape", [name, b.integers(-1, *whole, *kept)])
    if crops.any():
        ends = [extent - after for extent, after in zip(whole, crops[:, 1].tolist(), strict=True)]
        begins = b.integers(*crops[:, 0].tolist())
        name = b.node("Slice", [name, begins, b.integers(*ends), b.integers(*range(1, count + 1))])
    write(b, op, name)


def _integers(b: Builder, index: int, what: str) -> list[int]:
    return [int(number) for number in b.data(index, what).reshape(-1)]


def _fixed(extents: tuple[int | None, ...]) -> list[int]:
    if any(extent is None for extent in extents):
        raise unsupported("blocks beside an open size", "fixed sizes behind the batch")
    return [extent for extent in extents if extent is not None]
