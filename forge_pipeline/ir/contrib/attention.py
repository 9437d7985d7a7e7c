"""Attention of com.microsoft, as products, a softmax and what splits and joins heads.

softmax(scale q kT + mask) v: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762. Source of the operators:
ONNX Runtime's ContribOperators.md and its kernels for CPUs. No size of batch or tokens need be known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from forge_pipeline.ir.contrib import masks
from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

HEADS = (0, 2, 1, 3)
"""[batch, tokens, heads, size] to [batch, heads, tokens, size], and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Queries, keys and values, (batch, heads, tokens, size); ``size`` is that of a query, if it is known."""

    query: str
    key: str
    value: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What is added to the scores: a mask of padding, a bias, and whether no query sees a later key."""

    padding: str
    bias: str
    is_causal: bool
    filler: float


def heads_of(op: Emitter, value: str, heads: int) -> str:
    """Return (batch, tokens, heads * size) as (batch, heads, tokens, size)."""
    width = op.size(value, -1)
    return op.transpose(op.reshape(value, 0, 0, heads, -1 if width is None else width // heads), *HEADS)


def joined(op: Emitter, value: str, heads: int) -> str:
    """Return (batch, heads, tokens, size) as (batch, tokens, heads * size)."""
    size = op.size(value, -1)
    return op.reshape(op.transpose(value, *HEADS), 0, 0, -1 if size is None else heads * size)


def scaled(op: Emitter, scores: str, query: str, size: int | None) -> str:
    """Return scores times the node's scale, by default one by the root of a head's size."""
    factor = op.real("scale")
    if factor:
        return op("Mul", scores, op.number(factor, scores))
    if size:
        return op("Mul", scores, op.number(1 / math.sqrt(size), scores))
    return op("Div", scores, op("Sqrt", op.cast(op.length(query, -1), op.kind(scores))))


def _scores(op: Emitter, operands: Operands, mask: Mask) -> str:
    """Return what the softmax is taken of."""
    query, key = operands.query, operands.key
    scores = scaled(op, op("MatMul", query, op.transpose(key, 0, 1, 3, 2)), query, operands.size)
    terms = [mask.bias] if mask.bias else []
    keys = op.length(key, 2) if mask.padding or mask.is_causal else ""
    if mask.padding:
        terms.append(masks.padding(op, mask.padding, keys, scores, mask.filler))
    if mask.is_causal and op.size(query, 2) != 1:
        terms.append(masks.causal(op, op.length(query, 2), keys, scores))
    if not terms:
        return scores
    total = terms[0]
    for term in terms[1:]:
        total = op("Add", total, term)
    return op("Add", scores, total)


def _attend(op: Emitter, operands: Operands, mask: Mask, heads: int) -> str:
    """Give the first result, and return what the softmax is taken of."""
    scores = _scores(op, operands, mask)
    op.give(0, joined(op, op("MatMul", op.softmax(scores), operands.value), heads))
    return scores


def _mask(op: Emitter, padding: int, bias: int) -> Mask:
    return Mask(
        padding=op.input(padding),
        bias=op.input(bias),
        is_causal=bool(op.integer("unidirectional")),
        filler=op.real("mask_filter_value", -10000.0),
    )


def _head_count(op: Emitter, name: str = "num_heads") -> int:
    heads = op.integer(name)
    if heads < 1:
        raise Unusual(f"{heads} heads")
    return heads


def _projected(op: Emitter, product: str, width: int | None, heads: int, past: str) -> Operands:
    """Return the operands from a product by weights of queries, keys and values, and give what is kept of the latter.

    ``width``: of all three. ``past``: keys and values of earlier tokens, (2, batch, heads, tokens, size).
    """
    sizes = op.listed("qkv_hidden_sizes", int)
    if not sizes:
        if width is None or width % 3:
            raise Unusual(f"weights of {width or 'an unknown number of'} columns for queries, keys and values")
        sizes = [width // 3] * 3
    if len(sizes) != 3 or sizes[0] != sizes[1] or any(size < 1 or size % heads for size in sizes):
        raise Unusual(f"{sizes} channels of queries, keys and values for {heads} heads")
    query, key, value = (heads_of(op, part, heads) for part in op.split(product, sizes))
    if past:
        before = [op("Gather", past, op.index(place), axis=0) for place in (0, 1)]
        key, value = (op.concat(old, new, axis=2) for old, new in zip(before, (key, value), strict=True))
    if op.output(1):
        op.give(1, op.concat(op.unsqueeze(key, 0), op.unsqueeze(value, 0), axis=0))
    return Operands(query=query, key=key, value=value, size=sizes[0] // heads)


def _packed(writer: Writer, node: NodeProto) -> None:
    """Attention (input, weights, bias, mask_index, past, attention_bias, past_sequence_length)."""
    op = Emitter(writer, node)
    heads, weights, bias = _head_count(op), op.input(1), op.input(2)
    if op.integer("do_rotary"):
        raise Unusual("rotary embeddings inside")
    _refuse_shared(op, {6: "keys and values in one buffer with those to come"})
    product = op("MatMul", op.input(0), weights)
    if bias:
        product = op("Add", product, bias)
    width = op.size(weights, 1) or (op.size(bias, 0) if bias else None)
    _attend(op, _projected(op, product, width, heads, op.input(4)), _mask(op, 3, 5), heads)


def _refuse_shared(op: Emitter, places: dict[int, str]) -> None:
    op.refuse(places)
    if op.integer("past_present_share_buffer"):
        raise Unusual("keys and values in one buffer with those to come")


def _of_integers(writer: Writer, node: NodeProto) -> None:
    """QAttention (input, weight, bias, input_scale, weight_scale, mask_index, input_zero_point, weight_zero_point,
    past): the projection on integers, the rest on floats."""
    op = Emitter(writer, node)
    heads = _head_count(op)
    if op.integer("do_rotary"):
        raise Unusual("rotary embeddings inside")
    _refuse_shared(op, {})
    x = writer.real((op.input(0), op.input(3), op.input(6)))
    weights = writer.real((op.input(1), op.input(4), op.input(7)), axis=1)
    product = op("Add", op("MatMul", x, weights), op.input(2))
    operands = _projected(op, product, op.size(op.input(1), 1), heads, op.input(8))
    _attend(op, operands, _mask(op, 5, len(node.input)), heads)


def _multi_head(writer: Writer, node: NodeProto) -> None:
    """MultiHeadAttention (query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value,
    past_sequence_length, cache_indirection)."""
    op = Emitter(writer, node)
    heads = _head_count(op)
    op.refuse({8: "keys and values in one buffer with those to come", 9: "an order of beams (cache_indirection)"})
    operands = _with_past(op, _separate(op, op.input(3), heads), op.input(6), op.input(7))
    scores = _attend(op, operands, _mask(op, 4, 5), heads)
    op.give(3, scores)


def _masked_decoder(writer: Writer, node: NodeProto) -> None:
    """DecoderMaskedMultiHeadAttention (query, key, value, mask_index, attention_bias, past_key, past_value,
    past_sequence_length, beam_width, cache_indirection, bias): one token, whose key and value have a place in the
    buffers of those before."""
    op = Emitter(writer, node)
    heads = _head_count(op)
    op.refuse({9: "an order of beams (cache_indirection)"})
    operands = _separate(op, op.input(10), heads)
    if op.input(7) and op.input(5) and op.input(6):
        operands = _in_buffers(op, operands)
    else:
        operands = _with_past(op, operands, op.input(5), op.input(6))
    scores = _attend(op, operands, _mask(op, 3, 4), heads)
    op.give(3, scores)


def _in_buffers(op: Emitter, operands: Operands) -> Operands:
    """Return operands with the keys and values of all tokens so far, and give the buffers with the new ones in them."""
    before = op.reshape(op.cast(op.input(7), TensorProto.INT64), 1)
    total = op("Add", before, op.integers(1))
    found = []
    for place, (buffer, new) in enumerate(((op.input(5), operands.key), (op.input(6), operands.value)), start=1):
        columns = op.unsqueeze(op.positions(op.integers(0), op.length(buffer, 2)), 1)
        filled = op.give(place, op("Where", op("Equal", columns, before), new, buffer))
        found.append(op.slice(filled, op.integers(0), total, 2))
    return Operands(query=operands.query, key=found[0], value=found[1], size=operands.size)


def _separate(op: Emitter, bias: str, heads: int) -> Operands:
    """Return queries, keys and values that are three inputs, two, or one, each with its part of ``bias``."""
    query, key, value = (op.input(place) for place in range(3))
    if not key:
        parts = _unpacked(op, query, heads, 3)
    elif not value:
        parts = [query, *_unpacked(op, key, heads, 2)]
    else:
        parts = [query, key, value]
    if bias:
        parts = _biased(op, parts, bias)
    width = op.size(parts[0], -1)
    found = [
        name if op.rank(name, "an operand") == 4 else heads_of(op, name, heads) for name in parts
    ]  # four axes: keys of another model, heads first
    return Operands(query=found[0], key=found[1], value=found[2], size=None if width is None else width // heads)


def _unpacked(op: Emitter, packed: str, heads: int, count: int) -> list[str]:
    """Return the parts of (batch, tokens, heads, count, size), or of (batch, tokens, count * heads * size)."""
    rank = op.rank(packed, "packed operands")
    if rank == 5:
        size = op.size(packed, -1)
        parts = [op.squeeze(part, 3) for part in op.split(packed, (1,) * count, 3)]
        return [op.reshape(part, 0, 0, -1 if size is None else heads * size) for part in parts]
    width = op.size(packed, -1)
    if rank != 3 or width is None or width % count:
        raise Unusual(f"packed operands of {rank} axes")
    return op.split(packed, (width // count,) * count)


def _biased(op: Emitter, parts: list[str], bias: str) -> list[str]:
    """Return operands with their parts of a bias."""
    whole, width = op.size(bias, 0), op.size(parts[0], -1)
    if whole is None or width is None:
        raise Unusual("a bias for an unknown number of channels")
    pieces = op.split(bias, (width, width, whole - 2 * width))
    return [op("Add", part, piece) for part, piece in zip(parts, pieces, strict=True)]


def _with_past(op: Emitter, operands: Operands, past_key: str, past_value: str) -> Operands:
    """Return operands with keys and values of earlier tokens in front, and give both as results."""
    key, value = operands.key, operands.value
    if past_key and past_value:
        key, value = op.concat(past_key, key, axis=2), op.concat(past_value, value, axis=2)
    key, value = op.give(1, key), op.give(2, value)
    return Operands(query=operands.query, key=key, value=value, size=operands.size)


RULES = {
    "Attention": _packed,
    "DecoderMaskedMultiHeadAttention": _masked_decoder,
    "MultiHeadAttention": _multi_head,
    "QAttention": _of_integers,
}
"""How to write out each operator of com.microsoft."""
