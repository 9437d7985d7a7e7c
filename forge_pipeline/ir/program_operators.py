"""Operators of our own domain: what stands in a graph where a program acts, or a kernel that ONNX has no operator for.

Two are steps of a program (``runtime.program``): ``Extents(sizes) -> extents`` is a tensor without contents whose shape
``sizes`` says, and ``Prefix(x, extents)`` is as much of ``x`` as its first extent says. The others are kernels that
find a number of things that data decides: their results have room for the most that there can be, and a count.
"""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "forge"
EXTENTS: Final = "Extents"
PREFIX: Final = "Prefix"
POSITIONS: Final = "Positions"
"""``(x) -> (places, count)``: the flat places where x is not zero."""
UNIQUE: Final = "UniqueElements"
"""``(x) -> (first, inverse, counts, count)``, attributes ``axis`` and ``sorted`` as ONNX's Unique has them."""
SUPPRESSION: Final = "SuppressedBoxes"
"""``(boxes, scores, most, overlap, least) -> (selected, count)``, attribute ``center_point_box``."""
ROUNDED_LSTM: Final = "RoundedLstm"
"""``(product, state, cell, integers, zero, scale) -> (state, cell, states)``, attribute ``reverse``: the Scan that
``ir.qdq.rounded_lstm`` writes."""
SIZES: Final = "Sizes"
"""``() -> sizes``: int64 of shape ``shape``; ``sizes`` are expressions over the extents of inputs, as JSON."""
APPEND: Final = "Append"
"""``(cache, new) -> cache``: tokens first; in a program the result lies where the cache lies that a session keeps."""
CACHED_ATTENTION: Final = "CachedAttention"
"""``(query, keys, values, mask, sink)``: (batch, heads, tokens, size), keys and values as caches are, (keys, batch,
groups, size). The mask is added to the scores, a sink for each head is one more score without a value; both may be left
out. Attributes ``scale``; ``cap``, that of scores, or 0; ``guarded``: zero where nothing counts."""
