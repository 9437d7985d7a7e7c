"""What is added to the scores of attention: nothing where a key counts, a large negative number where it does not.

Source: ONNX Runtime's ContribOperators.md; the forms are those that its kernels for CPUs know.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual

LOWEST = {
    TensorProto.BFLOAT16: -3.38e38,
    TensorProto.DOUBLE: float(np.finfo(np.float64).min),
    TensorProto.FLOAT: float(np.finfo(np.float32).min),
    TensorProto.FLOAT16: float(np.finfo(np.float16).min),
}
"""About the least number of each type."""


def padding(op: Emitter, mask: str, keys: str, like: str, filler: float) -> str:
    """Return the mask of padded keys, broadcast to (batch, heads, queries, keys).

    ``mask`` has the number of keys of each row that count, (batch), perhaps with the first of them behind, (2 * batch);
    or ones and zeros, (batch, keys) or (batch, queries, keys). ``keys`` is the number of keys, ``like`` a value of the
    scores' type.
    """
    rank = op.rank(mask, "a mask")
    if rank == 1:
        counts = _counts(op, mask, keys)
    elif rank in (2, 3):
        wide = op.unsqueeze(mask, *((1, 2) if rank == 2 else (1,)))
        counts = op("Greater", wide, op.number(0, mask))
    else:
        raise Unusual(f"a mask of {rank} axes")
    return op("Where", counts, op.number(0.0, like), op.number(filler, like))


def _counts(op: Emitter, mask: str, keys: str) -> str:
    """Return which keys lie before the end of their row, and not before its start, (batch, 1, 1, keys)."""
    batch, length = op.extent(op.input(0), 0), op.extent(mask, 0)
    places = op.cast(op.positions(op.integers(0), keys), op.kind(mask))
    if batch is not None and batch == length:
        return op("Less", places, op.unsqueeze(mask, 1, 2, 3))
    if not isinstance(batch, int) or not isinstance(length, int):  # zeros behind: the start where none is given
        mask = op.concat(mask, op("Mul", mask, op.number(0, mask)), axis=0)
    elif length != 2 * batch:
        raise Unusual(f"a mask of {length} numbers for a batch of {batch}")
    one = op.length(op.input(0), 0)
    two = op("Add", one, one)
    ends, starts = (
        op.unsqueeze(op.slice(mask, begin, end, 0), 1, 2, 3) for begin, end in ((op.integers(0), one), (one, two))
    )
    return op("And", op("Less", places, ends), op("Not", op("Less", places, starts)))


def causal(op: Emitter, queries: str, keys: str, like: str) -> str:
    """Return the mask of keys behind their query, (queries, keys), where the last query belongs to the last key."""
    first = op("Sub", keys, queries)
    rows = op.unsqueeze(op.positions(first, queries), 1)
    columns = op.positions(op.integers(0), keys)
    return op("Where", op("Greater", columns, rows), lowest(op, like), op.number(0.0, like))


def lowest(op: Emitter, like: str) -> str:
    """Return the least number of the type that the value ``like`` has."""
    return op.number(LOWEST.get(op.kind(like), LOWEST[TensorProto.FLOAT]), like)
