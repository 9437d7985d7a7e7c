"""Attention with fewer heads of keys and values than of queries, with a cache that may be longer than what is in it.

Sources: Ainslie et al., "GQA", arXiv 2305.13245; ONNX Runtime's ContribOperators.md and its kernel for CPUs. Row b of
the batch has ``seqlens_k[b] + 1`` tokens, the new ones among them; the cache has room for as many as the longer of
the one that comes in and ``total_sequence_length``. A cache of a window (``sliding_window_cache``) keeps its size: it
drops several of its oldest tokens at once, as soon as a new one has no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from forge_pipeline.ir.contrib.attention import heads_of, joined, scaled
from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.masks import lowest
from forge_pipeline.ir.contrib.normalization import rms_norm
from forge_pipeline.ir.contrib.rotary import tables_at, turned
from forge_pipeline.ir.contrib.writer import Unusual, Writer

REFUSED = {
    12: "a cache in bytes (k_scale)",
    13: "a cache in bytes (v_scale)",
    16: "chunks with padding behind (query_seqlens)",
}
"""Inputs that are not written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Heads of queries, heads of keys and values, and the size of one where it is known."""

    heads: int
    groups: int
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where tokens are: ``before`` (batch, 1) tokens that each row had, ``ends`` (batch, 1) that it has, ``new`` ones
    and ``total`` of the longest row as vectors of one int64; ``rows`` (batch, new) positions of queries."""

    before: str
    ends: str
    new: str
    total: str
    rows: str


def _group_query(writer: Writer, node: NodeProto) -> None:
    """GroupQueryAttention (query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache,
    sin_cache, position_ids, attention_bias, head_sink, .., .., q_norm_weight, k_norm_weight)."""
    op = Emitter(writer, node)
    op.refuse(REFUSED)
    if op.output(3):
        raise Unusual("scores as a result")
    query, key, value, layout = _operands(op)
    if op.input(14) and op.input(15):
        query, key = (
            rms_norm(op, name, op.input(place), op.real(own, op.real("qk_norm_epsilon", 1e-6)))[0]
            for name, place, own in ((query, 14, "q_norm_epsilon"), (key, 15, "k_norm_epsilon"))
        )
    places = _places(op)
    if op.integer("do_rotary"):
        positions = _positions(op, places)
        tables, half = tables_at(op, (7, 8), positions, 1)
        is_paired = bool(op.integer("rotary_interleaved"))
        query, key = (turned(op, name, tables, half, interleaved=is_paired, size=layout.size) for name in (query, key))
    if op.integer("sliding_window_cache"):
        (key, value), columns = _windowed(op, (key, value), places, layout)
    else:
        if op.input(3) and op.input(4):
            key, value = _cached(op, (key, value), places, layout)
        else:
            key, value = op.give(1, key), op.give(2, value)
        columns = op.positions(op.integers(0), places.total if op.input(3) else places.new)
    _attend(op, (query, key, value), _counts(op, places, columns), layout)


def _operands(op: Emitter) -> tuple[str, str, str, Layout]:
    """Return queries, keys and values with the heads in front, from three inputs or one."""
    query, key, value = (op.input(place) for place in range(3))
    heads, groups = op.integer("num_heads"), op.integer("kv_num_heads")
    if groups < 1 or heads < 1 or heads % groups:
        raise Unusual(f"{heads} heads of queries for {groups} of keys")
    width = op.size(query, -1)
    if not key:
        if width is None or width % (heads + 2 * groups):
            raise Unusual(f"{width or 'an unknown number of'} channels of {heads + 2 * groups} heads")
        size = width // (heads + 2 * groups)
        query, key, value = op.split(query, (heads * size, groups * size, groups * size))
        width = heads * size
    layout = Layout(heads=heads, groups=groups, size=None if width is None else width // heads)
    split = [heads_of(op, name, count) for name, count in ((query, heads), (key, groups), (value, groups))]
    return split[0], split[1], split[2], layout


def _places(op: Emitter) -> Places:
    """Return where tokens are: a first prompt, as long as the longest row, has none before it."""
    new = op.length(op.input(0), 1)
    total = op.reshape(op.cast(op.input(6), TensorProto.INT64), 1)
    ends = op("Add", op.reshape(op.cast(op.input(5), TensorProto.INT64), -1, 1), op.integers(1))
    is_first = op("Equal", total, new)
    before = op("Where", is_first, op.integers(0), op("Sub", ends, new))
    rows = op("Add", before, op.positions(op.integers(0), new))
    return Places(before=before, ends=ends, new=new, total=total, rows=rows)


def _positions(op: Emitter, places: Places) -> str:
    """Return the positions whose angles are taken: those given, of which a first prompt's are counted from one."""
    given = op.input(9)
    if not given:
        return places.rows
    first = op.slice(op.reshape(given, -1), op.integers(0), op.integers(1), 0)
    counted = op("Add", first, op.positions(op.integers(0), places.new))
    return op("Where", op("Equal", places.total, places.new), counted, given)


def _cached(op: Emitter, new: tuple[str, str], places: Places, layout: Layout) -> tuple[str, str]:
    """Return keys and values of all tokens, and give the caches with the new ones at their places.

    Where the new ones end, and behind, the cache that is given is zero.
    """
    old = (op.input(3), op.input(4))
    room = op.length(old[0], 2)
    length = op("Max", room, places.total)
    columns = op.unsqueeze(op.positions(op.integers(0), length), 0)
    is_old = op("Less", columns, places.before)
    last = op("Add", places.before, places.new)
    is_kept = op.unsqueeze(op("Less", columns, last), 1, 3)
    shifted = op("Add", op("Sub", columns, places.before), room)
    end = op("Sub", op("Add", room, places.new), op.integers(1))
    index = op("Min", op("Where", is_old, columns, shifted), end)
    rows = [op.concat(before, now, axis=2) for before, now in zip(old, new, strict=True)]
    caches = _given(op, rows, index, is_kept, layout)
    return op.slice(caches[0], op.integers(0), places.total, 2), op.slice(caches[1], op.integers(0), places.total, 2)


def _given(op: Emitter, rows: Sequence[str], index: str, is_kept: str, layout: Layout) -> list[str]:
    """Give the caches: what ``rows`` (batch, groups, rows, size) have at ``index`` (batch, room), zeros elsewhere."""
    caches = []
    for place, name in enumerate(rows, start=1):
        size = op.size(name, 3) or layout.size
        if size is None:
            raise Unusual("heads of an unknown size")
        wide = op("Expand", op.unsqueeze(index, 1, 3), op.integers(1, layout.groups, 1, size))
        found = op("GatherElements", name, wide, axis=2)
        caches.append(op.give(place, op("Where", is_kept, found, op.number(0.0, found))))
    return caches


def _windowed(op: Emitter, new: tuple[str, str], places: Places, layout: Layout) -> tuple[tuple[str, str], str]:
    """Return keys and values of the cache and behind them the new ones, and their positions, (batch, 1, 1, keys);
    give the caches, which have the latest tokens in front, in order, and zeros behind them."""
    window, old = op.integer("local_window_size", -1), (op.input(3), op.input(4))
    if window < 1 or not all(old) or op.input(10):
        raise Unusual("a cache of a window with a bias" if op.input(10) else "a cache of a window, and no window")
    room = op.length(old[0], 2)
    dropped = op("Max", op("Add", op("Sub", room, op.integers(window)), op.integers(1)), op.integers(1))

    def resident(tokens: str) -> str:
        """Return how many of so many tokens the cache holds: ``dropped`` ones leave it at once."""
        over = op("Add", op("Sub", tokens, room), op("Sub", dropped, op.integers(1)))
        return op("Sub", tokens, op("Mul", dropped, op("Div", op("Max", over, op.integers(0)), dropped)))

    columns = op.unsqueeze(op.positions(op.integers(0), room), 0)
    held = resident(places.before)
    first = op("Sub", places.before, held)
    known = op("Where", op("Less", columns, held), op("Add", columns, first), places.ends)
    positions = op.unsqueeze(op.concat(known, places.rows, axis=1), 1, 2)
    held = resident(places.ends)
    position = op("Add", columns, op("Sub", places.ends, held))
    is_old = op("Less", position, places.before)
    index = op("Sub", position, op("Where", is_old, first, op("Sub", places.before, room)))
    end = op("Sub", op("Add", room, places.new), op.integers(1))
    rows = [op.concat(before, now, axis=2) for before, now in zip(old, new, strict=True)]
    _given(op, rows, op("Min", index, end), op.unsqueeze(op("Less", columns, held), 1, 3), layout)
    return (rows[0], rows[1]), positions


def _counts(op: Emitter, places: Places, columns: str) -> str:
    """Return which keys count for a query, (batch, 1, new, keys); ``columns``: their positions."""
    window = op.integer("local_window_size", -1)
    rows = op.unsqueeze(places.rows, 1, 3)
    counts = op("Less", columns, op.unsqueeze(places.ends, 1, 3))
    if op.integer("causal", 1):
        counts = op("And", counts, op("Not", op("Greater", columns, rows)))
    if window > 0:
        counts = op("And", counts, op("Greater", columns, op("Sub", rows, op.integers(window))))
    return counts


def _attend(op: Emitter, operands: tuple[str, str, str], counts: str, layout: Layout) -> None:
    """Give the first result; ``counts``: which keys count. The queries of a group are the rows of one product, without
    repeating heads."""
    query, key, value = operands
    is_grouped = layout.heads != layout.groups
    rows = op.reshape(query, 0, layout.groups, -1, layout.size or 0) if is_grouped else query
    scores = op("MatMul", rows, op.transpose(key, 0, 1, 3, 2))
    if is_grouped:
        scores = op.reshape(scores, 0, layout.heads, -1, 0)
    scores = scaled(op, scores, query, layout.size)
    cap = op.real("softcap")
    if cap > 0:
        scores = op("Mul", op("Tanh", op("Div", scores, op.number(cap, scores))), op.number(cap, scores))
    if op.input(10):
        scores = op("Add", scores, op.input(10))
    weights = _weights(op, op("Where", counts, scores, lowest(op, scores)), layout)
    if op.integer("local_window_size", -1) > 0:  # where nothing counts, behind the end of a row, the result is zero
        weights = op("Where", counts, weights, op.number(0.0, weights))
    if is_grouped:
        weights = op.reshape(weights, 0, layout.groups, -1, 0)
    mixed = op("MatMul", weights, value)
    if is_grouped:
        mixed = op.reshape(mixed, 0, layout.heads, -1, layout.size or 0)
    op.give(0, joined(op, mixed, layout.heads))


def _weights(op: Emitter, scores: str, layout: Layout) -> str:
    """Return the softmax of scores, whose sum has one more term where there is a sink (Xiao et al., "Efficient
    Streaming Language Models with Attention Sinks", arXiv 2309.17453)."""
    sink = op.input(11)
    if not sink and not op.integer("smooth_softmax"):
        return op.softmax(scores)
    term = op.reshape(sink, 1, layout.heads, 1, 1) if sink else op.number(0.0, scores)
    top = op("Max", op.reduce("ReduceMax", scores, (-1,)), term)
    powers = op("Exp", op("Sub", scores, top))
    total = op("Add", op.reduce("ReduceSum", powers, (-1,)), op("Exp", op("Sub", term, top)))
    return op("Div", powers, total)


RULES = {"GroupQueryAttention": _group_query}
"""How to write out each operator of com.microsoft."""
