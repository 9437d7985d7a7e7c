"""Operators that move elements: Transpose, DepthToSpace, SpaceToDepth, Col2Im."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known


def transpose(op: Operation) -> Sequence[Known]:
    """Permute axes."""
    given, shape = op.input(0), needed(op.shape(0))
    order = [int(axis) for axis in op.attribute("perm", range(len(shape))[::-1])]
    contents = None if given.contents is None else given.contents.transpose(order)
    return [Known(given.dtype, tuple(shape[axis] for axis in order), contents)]


def depth_to_space(op: Operation) -> Sequence[Known]:
    """Channels to blocks of pixels."""
    batch, channels, height, width = needed(op.shape(0))
    block = int(op.attribute("blocksize"))
    return [Known(op.input(0).dtype, (batch, e.floordiv(channels, block * block), height * block, width * block))]


def space_to_depth(op: Operation) -> Sequence[Known]:
    """Blocks of pixels to channels."""
    batch, channels, height, width = needed(op.shape(0))
    block = int(op.attribute("blocksize"))
    sides = (e.floordiv(height, block), e.floordiv(width, block))
    for side, part in zip((height, width), sides, strict=True):
        op.require_equal(side, part * block, f"a side does not divide into blocks of {block}")
    return [Known(op.input(0).dtype, (batch, channels * block * block, *sides))]


RULES: Final[Mapping[str, Rule]] = {
    "Transpose": transpose,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
