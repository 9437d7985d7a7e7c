"""Rotary position embeddings: pairs of channels turned by angles that grow with the position.

Sources: Su et al., "RoFormer", arXiv 2104.09864; ONNX Runtime's ContribOperators.md. The tables have the cosines and
sines of every position, for half of the channels that are turned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer


def turned(op: Emitter, x: str, tables: tuple[str, str], half: int, *, interleaved: bool, size: int | None) -> str:
    """Return (.., .., .., size) with its first ``2 * half`` channels turned: a channel and the one ``half`` behind it,
    or its neighbour where ``interleaved``. ``tables`` are cosines and sines, broadcast to (.., .., .., half)."""
    rest = ""
    if size is None or size != 2 * half:
        rest = op.slice(x, op.integers(2 * half), op.integers(np.iinfo(np.int64).max), -1)
        x = op.part(x, 0, 2 * half)
    if interleaved:
        pairs = op.split(op.reshape(x, 0, 0, 0, half, 2), (1, 1))
        left, right = (op.squeeze(part, -1) for part in pairs)
    else:
        left, right = op.split(x, (half, half))
    cosines, sines = tables
    one = op("Sub", op("Mul", left, cosines), op("Mul", right, sines))
    other = op("Add", op("Mul", right, cosines), op("Mul", left, sines))
    if interleaved:
        joined = op.concat(op.unsqueeze(one, -1), op.unsqueeze(other, -1), axis=-1)
        value = op.reshape(joined, 0, 0, 0, 2 * half)
        return op.concat(value, rest, axis=-1) if rest else value
    return op.concat(one, other, *([rest] * bool(rest)), axis=-1)


def tables_at(op: Emitter, places: tuple[int, int], positions: str, axis: int) -> tuple[tuple[str, str], int]:
    """Return cosines and sines at positions (batch, tokens), with an axis for heads, and the number of them."""
    half = op.size(op.input(places[0]), 1)
    if not half:
        raise Unusual("tables of an unknown width")
    cosines, sines = (op.unsqueeze(op("Gather", op.input(place), positions, axis=0), axis) for place in places)
    return (cosines, sines), half


def _rotary(writer: Writer, node: NodeProto) -> None:
    """RotaryEmbedding (input, position_ids, cos_cache, sin_cache); one position is that of the first token."""
    op = Emitter(writer, node)
    x, positions = op.input(0), op.input(1)
    rank = op.rank(x, "an operand")
    if op.rank(positions, "positions") == 1:
        tokens = op.length(x, 1 if rank == 3 else 2)
        positions = op.unsqueeze(op.positions(positions, tokens), 0)
    tables, half = tables_at(op, (2, 3), positions, 2 if rank == 3 else 1)
    _give_turned(op, tables, half, rank)


def _give_turned(op: Emitter, tables: tuple[str, str], half: int, rank: int) -> None:
    x, is_paired = op.input(0), bool(op.integer("interleaved"))
    if rank == 4:
        op.give(0, turned(op, x, tables, half, interleaved=is_paired, size=op.size(x, -1)))
        return
    if rank != 3:
        raise Unusual(f"an operand of {rank} axes")
    heads, width = op.integer("num_heads"), op.size(x, -1)
    if op.integer("rotary_embedding_dim") and heads < 1:
        raise Unusual("no number of heads")
    size = 2 * half if heads < 1 else None if width is None else width // heads
    if size and width is not None:
        heads = width // size
    split = op.reshape(x, 0, 0, heads if heads > 0 else -1, size or -1)
    value = turned(op, split, tables, half, interleaved=is_paired, size=size)
    op.give(0, op.reshape(value, 0, 0, width or -1))


def _of_three(writer: Writer, node: NodeProto) -> None:
    """MRotaryEmbedding (input, position_ids, cos_cache, sin_cache): each angle by one of three positions, for time,
    height and width (Wang et al., "Qwen2-VL", arXiv 2409.12191)."""
    op = Emitter(writer, node)
    rank, sections = op.rank(op.input(0), "an operand"), op.listed("mrope_section", int)
    axis = 2 if rank == 3 else 1
    tables, half = [], 0
    for stream in range(3):
        positions = op("Gather", op.input(1), op.index(stream), axis=0)
        found, half = tables_at(op, (2, 3), positions, axis)
        tables.append(found)
    streams = np.array(_streams(sections, half, interleaved=bool(op.integer("mrope_layout"))))
    mixed = tables[0]
    for stream in (1, 2):
        mask = op.constant(streams == stream)
        mixed = (op("Where", mask, tables[stream][0], mixed[0]), op("Where", mask, tables[stream][1], mixed[1]))
    _give_turned(op, mixed, half, rank)


def _streams(sections: Sequence[int], half: int, *, interleaved: bool) -> list[int]:
    """Return which of the three positions each of ``half`` angles belongs to."""
    if len(sections) != 3 or sum(sections) != half or min(sections) < 0:
        raise Unusual(f"sections {list(sections)} of {half} angles")
    if not interleaved:
        return [stream for stream in range(3) for _ in range(sections[stream])]
    ends = [half, sections[1] * 3, sections[2] * 3]
    return [place % 3 if place < ends[place % 3] else 0 for place in range(half)]


RULES = {"MRotaryEmbedding": _of_three, "RotaryEmbedding": _rotary}
"""How to write out each operator of com.microsoft."""
