"""ONNX's Attention: products, a softmax and elementwise operators, which schedules know.

The equations are those of the ONNX operator reference, Attention-23 and 24. What is not here (keys and values of
earlier calls, lengths, windows, caps, a result of the scores) is written out by the standard's own definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.ir.sizes.expression import Whole

LEAST: Final = -1e30
"""The score of a key that takes no part: less than any other, and no infinity, whose difference from itself is NaN."""


def _attention(node: NodeImport) -> Any:
    """``softmax(scale q kT + mask) v`` over [batch, heads, tokens, size], or over heads joined in one axis."""
    _check(node)
    dtype, is_joined = node.dtype(), node.rank() == 3
    query, key, value = (_heads(node, index) for index in range(3))
    width = query.ty.shape.values[-1]
    scale = float(node.attributes.get("scale", 0.0)) or 1 / math.sqrt(int(width))
    scores = node.emit(op.matmul(query, node.emit(op.permute_dims(key, [0, 1, 3, 2]))))
    scores = node.emit(op.multiply(scores, node.const(scale, dtype)))
    flags = node.input(3) if node.has(3) and node.dtype(3) == "bool" else None
    if flags is not None:
        scores = node.emit(op.where(flags, scores, node.const(LEAST, dtype)))
    elif node.has(3):
        scores = node.emit(op.add(scores, node.input(3)))
    shares = node.emit(op.nn.softmax(scores, axis=-1))
    if flags is not None:  # of a query without a single key nothing is left
        shares = node.emit(op.where(flags, shares, node.const(0, dtype)))
    mixed = node.emit(op.matmul(shares, value))
    if not is_joined:
        return mixed
    return node.reshape(node.emit(op.permute_dims(mixed, [0, 2, 1, 3])), node.result_shape())


def _check(node: NodeImport) -> None:
    """Raise NotImplementedError for what only the definition has."""
    plain = {
        "is_causal": 0,
        "softcap": 0.0,
        "qk_matmul_output_mode": 0,
        "left_window_size": -1,
        "right_window_size": -1,
    }
    for name, value in plain.items():
        if node.attributes.get(name, value) != value:
            raise NotImplementedError(f"{name} is set")
    if any(node.has(index) for index in range(4, len(node.proto.input))) or any(node.wants(i) for i in (1, 2, 3)):
        raise NotImplementedError("keys and values of earlier calls")
    if _head_count(node, 0) != _head_count(node, 1) or _head_count(node, 1) != _head_count(node, 2):
        raise NotImplementedError("fewer heads of keys than of queries")
    if not isinstance(node.shape(0)[-1], int) or not isinstance(node.shape(2)[-1], int):
        raise NotImplementedError("a size of heads that is not known")
    if "softmax_precision" in node.attributes and node.attributes["softmax_precision"] != node.known(0).dtype:
        raise NotImplementedError("a softmax in another type")
    if node.has(3) and node.dtype(3) not in ("bool", node.dtype()):
        raise NotImplementedError("a mask of another type")
    if node.has(3) and node.shape(3)[-1] != node.shape(1)[-2]:
        raise NotImplementedError("a mask of fewer keys than there are")


def _head_count(node: NodeImport, index: int) -> Whole:
    if node.rank(index) == 4:
        return node.shape(index)[1]
    return int(node.attributes["q_num_heads" if index == 0 else "kv_num_heads"])


def _heads(node: NodeImport, index: int) -> Any:
    """Return an operand as (batch, heads, tokens, size)."""
    if node.rank(index) == 4:
        return node.input(index)
    batch, tokens, width = node.shape(index)
    heads = _head_count(node, index)
    if not isinstance(width, int) or not isinstance(heads, int):
        raise NotImplementedError("a size of heads that is not known")
    apart = node.reshape(node.input(index), (batch, tokens, heads, width // heads))
    return node.emit(op.permute_dims(apart, [0, 2, 1, 3]))


CONVERTERS: Mapping[str, Converter] = {"Attention": _attention}
