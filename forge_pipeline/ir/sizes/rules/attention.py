"""Attention, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known, Shape


def _heads(shape: Shape, heads: int) -> Shape:
    """Return a shape as batch, heads, steps and width of a head, of one that is so or has all heads side by side."""
    if len(shape) == 4:
        return shape
    batch, steps, width = shape
    return batch, heads, steps, e.floordiv(width, heads)


def attention(op: Operation) -> Sequence[Known]:
    """Attention-23: the result, keys and values with what was kept of before, and the scores."""
    dtype, q = op.input(0).dtype, needed(op.shape(0))
    rows, count = _heads(q, int(op.attribute("q_num_heads", 1))), int(op.attribute("kv_num_heads", 1))
    keys, values = _heads(needed(op.shape(1)), count), _heads(needed(op.shape(2)), count)
    batch = op.require_equal(rows[0], keys[0], "the batches of queries and keys differ")
    op.require_equal(rows[3], keys[3], "the widths of queries and keys differ")
    before: Whole = needed(op.shape(4))[2] if op.has(4) else 0
    steps = before + keys[2]
    outer = (batch, rows[2], rows[1] * values[3]) if len(q) == 3 else (batch, rows[1], rows[2], values[3])
    found = (outer, (batch, keys[1], steps, keys[3]), (batch, values[1], steps, values[3]), (batch, *rows[1:3], steps))
    kinds = (dtype, op.input(1).dtype, op.input(2).dtype, dtype)
    shapes = [tuple(map(op.context.resolve, shape)) for shape in found]
    return [Known(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]


def same(op: Operation) -> Sequence[Known]:
    """Keep the first input's shape and type."""
    return [Known(op.input(0).dtype, op.shape(0))]


RULES: Final[Mapping[str, Rule]] = {"Attention": attention, "RotaryEmbedding": same}
