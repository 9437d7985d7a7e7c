"""Attention, and what goes with it, of ONNX and of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
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


def packed_attention(op: Operation) -> Sequence[Known]:
    """com.microsoft Attention: one product for queries, keys and values, whose widths are thirds unless they are said.

    The second result keeps keys and values, one behind the other.
    """
    dtype, data, weights = op.input(0).dtype, needed(op.shape(0)), needed(op.shape(1))
    heads, widths = int(op.attribute("num_heads")), op.attribute("qkv_hidden_sizes")
    width = int(widths[2]) if widths else e.floordiv(weights[1], 3)
    past = op.shape(4) if op.has(4) else None
    steps = data[1] + (past[3] if past is not None else 0)
    present = (2, data[0], heads, steps, e.floordiv(width, heads))
    return [Known(dtype, (data[0], data[1], width)), Known(dtype, present)]


def multi_head_attention(op: Operation) -> Sequence[Known]:
    """com.microsoft MultiHeadAttention: queries, keys and values apart, or packed in five axes."""
    dtype, q = op.input(0).dtype, needed(op.shape(0))
    heads = int(op.attribute("num_heads"))
    if len(q) == 5:
        return [Known(dtype, (q[0], q[1], q[2] * q[4]))]
    if not op.has(1):
        raise Unknown
    keys = needed(op.shape(1))
    if not op.has(2):
        return [Known(dtype, q)]
    values = needed(op.shape(2))
    width = values[1] * values[3] if len(values) == 4 else values[2]
    before: Whole = needed(op.shape(6))[2] if op.has(6) else 0
    steps = before + (keys[2] if len(keys) == 4 else keys[1])
    present = [(q[0], heads, steps, e.floordiv(size, heads)) for size in (q[2], width)]
    return [Known(dtype, (q[0], q[1], width)), *(Known(dtype, shape) for shape in present)]


def group_query_attention(op: Operation) -> Sequence[Known]:
    """com.microsoft GroupQueryAttention: queries of several heads share keys and values; these are kept."""
    dtype, q = op.input(0).dtype, needed(op.shape(0))
    heads, groups = int(op.attribute("num_heads")), int(op.attribute("kv_num_heads"))
    packed = not op.has(1)
    head = e.floordiv(q[2], heads + 2 * groups) if packed else e.floordiv(q[2], heads)
    kept: Known | None = None
    if op.has(3):
        past = needed(op.shape(3))
        total = op.sizes("", 6)
        steps = e.maximum(past[2], total[0]) if total else op.fresh("total")
        kept = Known(op.input(3).dtype, (q[0], groups, steps, head))
    present = kept or Known(dtype, (q[0], groups, q[1], head))
    return [Known(dtype, (q[0], q[1], heads * head)), present, present]


RULES: Final[Mapping[str, Rule]] = {"Attention": attention, "RotaryEmbedding": same}
MICROSOFT: Final[Mapping[str, Rule]] = {
    "Attention": packed_attention,
    "QAttention": packed_attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "RotaryEmbedding": same,
}
