"""Sums of embeddings of words, positions and segments, normalized: BERT's first layer.

Source: ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.normalization import layer_norm
from forge_pipeline.ir.contrib.writer import Writer

Table = tuple[str, str, str]
"""The names of a table, and where it is stored in bytes of its scale and zero point, else empty."""


def _floats(writer: Writer, node: NodeProto) -> None:
    """EmbedLayerNormalization (input_ids, segment_ids, word_embedding, position_embedding, segment_embedding, gamma,
    beta, mask, position_ids)."""
    op = Emitter(writer, node)
    words, positions, segments = ((op.input(place), "", "") for place in (2, 3, 4))
    total = _sum(op, words, positions, segments, op.input(8))
    layer_norm(op, total, op.input(5), op.input(6), op.real("epsilon", 1e-12))
    op.give(2, total)
    _lengths(op)


def _bytes(writer: Writer, node: NodeProto) -> None:
    """QEmbedLayerNormalization: the same with every table in bytes; of each a scale and a zero point follow."""
    op = Emitter(writer, node)
    names = [(op.input(place), op.input(place + 6), op.input(place + 11)) for place in range(2, 7)]
    total = _sum(op, names[0], names[1], names[2], "")
    gamma, beta = (writer.real(table) for table in names[3:])
    layer_norm(op, total, gamma, beta, op.real("epsilon", 1e-12))
    _lengths(op)


def _sum(op: Emitter, words: Table, positions: Table, segments: Table, places: str) -> str:
    """Return the sum of the embeddings, (batch, tokens, channels); positions count from 0 where ``places`` is empty."""
    found = _rows(op, words, op.input(0))
    if places:
        at = _rows(op, positions, places)
    else:
        first = op.slice(positions[0], op.integers(0), op.length(op.input(0), 1), 0)
        at = op.writer.real((first, *positions[1:])) if positions[1] else first
    total = op("Add", found, at)
    return op("Add", total, _rows(op, segments, op.input(1))) if op.input(1) and segments[0] else total


def _rows(op: Emitter, table: Table, places: str) -> str:
    rows = op("Gather", table[0], places, axis=0)
    return op.writer.real((rows, *table[1:])) if table[1] else rows


def _lengths(op: Emitter) -> None:
    """Give the second result: how many elements of each row of the mask are 1; 0 where there is no mask."""
    if op.input(7):
        ones = op.cast(op("Equal", op.input(7), op.number(1, op.input(7))), TensorProto.INT32)
        op.give(1, op.reduce("ReduceSum", ones, (1,), keepdims=False))
    else:
        zero = helper.make_tensor("zero", TensorProto.INT32, [1], np.zeros(1, np.int32))
        op.result(1, "ConstantOfShape", op.length(op.input(0), 0), value=zero)


RULES = {"EmbedLayerNormalization": _floats, "QEmbedLayerNormalization": _bytes}
"""How to write out each operator of com.microsoft."""
