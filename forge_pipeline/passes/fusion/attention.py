"""Scaled dot-product attention, recognised where the operator set has it as one operator, and products beside it.

Source: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762; the operator is ONNX's Attention, set 23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op

WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)
"""The operator scales both operands by the root of the scale: in half precision it overflows on other numbers."""

FIRST_OPSET = 23
HEADS_OUT = [0, 2, 1, 3]  # [batch, tokens, heads, size] to [batch, heads, tokens, size], and back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """softmax(scale q kT + mask) v; all of q, k and v as [batch, heads, tokens, size], k perhaps by an order."""

    query: str
    key: str
    key_order: list[int] | None
    value: str
    mask: str | None
    scale: float


@verified(Tolerance())
class FuseAttention(Transformation[NoOptions]):
    """``softmax(scale q kT + mask) v -> Attention``, from operator set 23 on.

    Where the heads are split off and joined again around it, the operator does that too. Masks are those that are
    added; keys and values have as many heads as queries.
    """

    def call(self, graph: Graph) -> int:
        """Start at each product that may be the last one."""
        if graph.opset() < FIRST_OPSET:
            return 0
        return sum(_fuse(graph, node) for node in graph.nodes if node in graph and is_op(node, "MatMul"))


def _fuse(graph: Graph, last: NodeProto) -> bool:
    found = _attention(graph, last)
    if found is None:
        return False
    hint = last.output[0]
    mask_rows = (graph.shape(last.output[0]) or (None,) * 4)[2]
    whole = _without_heads(graph, found, last)
    target = last.output[0]
    attributes: dict[str, Any] = {"scale": found.scale}
    if whole is not None:
        joined, sources, heads = whole
        inputs, target = list(sources), joined.output[0]
        attributes |= {"q_num_heads": heads, "kv_num_heads": heads}
        graph.remove(joined)
    else:
        key = found.key
        if found.key_order is not None:
            key = str(graph.add("Transpose", [key], f"{hint}_key", perm=found.key_order).output[0])
        inputs = [found.query, key, found.value]
    if found.mask is not None:
        inputs.append(_full_mask(graph, found.mask, mask_rows, hint))
    if whole is None:
        graph.remove(last)
    graph.add_node(helper.make_node("Attention", inputs, [target], **attributes))
    return True


def _attention(graph: Graph, last: NodeProto) -> _Found | None:
    softmax = _made_by(graph, last.input[0], "Softmax")
    if softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    name, mask, scale = str(softmax.input[0]), None, 1.0
    added = _made_by(graph, name, "Add")
    if added is not None:
        split = _scores_and_mask(graph, added)
        if split is None:
            return None
        name, mask = split
    name, factor = _unscaled(graph, name)
    scale *= factor
    product = _made_by(graph, name, "MatMul")
    if product is None:
        return None
    query, factor = _unscaled(graph, str(product.input[0]))
    scale *= factor
    key, factor = _unscaled(graph, str(product.input[1]))
    scale *= factor
    order: list[int] | None = [0, 1, 3, 2]
    turned = _made_by(graph, key, "Transpose", alone=False)
    if turned is not None and attribute(turned, "perm") is not None:
        perm = [attribute(turned, "perm")[axis] for axis in (0, 1, 3, 2)]
        key, order = str(turned.input[0]), None if perm == [0, 1, 2, 3] else perm
        inner, factor = _unscaled(graph, key)
        key, scale = inner, scale * factor
    value = str(last.input[1])
    if not scale > 0 or not np.isfinite(scale):
        return None
    if any(graph.rank(name) != 4 or graph.elem_type(name) not in WIDE for name in (query, key, value)):
        return None
    found = _Found(query=query, key=key, key_order=order, value=value, mask=mask, scale=scale)
    return found if _same_heads(graph, found) else None


def _same_heads(graph: Graph, found: _Found) -> bool:
    """Whether batch and heads agree, so that nothing is broadcast that the operator would not broadcast."""
    query, key, value = (graph.shape(name) for name in (found.query, found.key, found.value))
    if query is None or key is None or value is None:
        return False
    order = found.key_order or [0, 1, 2, 3]
    turned = [key[axis] for axis in order]
    agree = all(dim is not None for dim in query[:2]) and list(query[:2]) == turned[:2] == list(value[:2])
    return agree and isinstance(query[1], int) and query[3] == turned[3] and query[3] is not None


def _made_by(graph: Graph, name: str, op: str, *, alone: bool = True) -> NodeProto | None:
    maker = graph.producer(name)
    if maker is None or not is_op(maker, op) or (alone and graph.only_user(name) is None):
        return None
    return maker


def _scores_and_mask(graph: Graph, added: NodeProto) -> tuple[str, str] | None:
    """Return the scores and what is added to them: of one type, and broadcast to them without changing their shape."""
    for operand in (0, 1):
        scores, mask = str(added.input[operand]), str(added.input[1 - operand])
        inner = _unscaled(graph, scores)[0]
        shape, wide = graph.shape(mask), graph.shape(scores)
        if _made_by(graph, inner, "MatMul") is None or shape is None or wide is None or len(wide) != 4:
            continue
        if not 2 <= len(shape) <= 4 or None in shape or shape[-1] != wide[-1]:
            continue
        rows = shape[-2] == wide[-2] or (shape[-2] == 1 and isinstance(wide[-2], int))
        tail = wide[4 - len(shape) :]
        if rows and all(size in (1, dim) for size, dim in zip(shape, tail, strict=True)):
            return scores, mask
    return None


def _full_mask(graph: Graph, mask: str, rows: int | str | None, hint: str) -> str:
    """Return the mask with a row for each query: the operator broadcasts batch and heads only."""
    shape = graph.shape(mask)
    if shape is None or shape[-2] == rows or not isinstance(rows, int):
        return mask
    target = graph.add_constant(np.array([*(1,) * (len(shape) - 2), rows, 1], np.int64), f"{hint}_mask_shape")
    return str(graph.add("Expand", [mask, target], f"{hint}_mask").output[0])


def _unscaled(graph: Graph, name: str) -> tuple[str, float]:
    """Return what a value is a multiple of, and the factor; the value itself and 1 where it is none."""
    maker = graph.producer(name)
    if maker is None or not is_op(maker, "Mul", "Div") or graph.only_user(name) is None:
        return name, 1.0
    for operand in (1, 0) if maker.op_type == "Mul" else (1,):
        array = graph.array(maker.input[operand])
        source = str(maker.input[1 - operand])
        if array is not None and array.size == 1 and array.ndim <= (graph.rank(source) or 0):
            number = float(array.reshape(()))
            return source, number if maker.op_type == "Mul" else 1.0 / number if number else float("inf")
    return name, 1.0


def _without_heads(graph: Graph, found: _Found, last: NodeProto) -> tuple[NodeProto, Sequence[str], int] | None:
    """Return the node that joins the heads again, [batch, tokens, heads * size] of q, k and v, and the heads."""
    turned = graph.only_user(last.output[0])
    if turned is None or not is_op(turned, "Transpose") or attribute(turned, "perm") != HEADS_OUT:
        return None
    joined = graph.only_user(turned.output[0])
    heads = graph.shape(found.query)
    if joined is None or not is_op(joined, "Reshape") or joined.input[0] != turned.output[0] or heads is None:
        return None
    wide, flat = graph.shape(turned.output[0]), graph.shape(joined.output[0])
    if wide is None or flat is None or not _is_joined(wide, flat):
        return None
    sources = []
    for name, order in ((found.query, None), (found.key, found.key_order), (found.value, None)):
        split = name
        if order is None:
            turn = graph.producer(name)
            if turn is None or not is_op(turn, "Transpose") or attribute(turn, "perm") != HEADS_OUT:
                return None
            split = turn.input[0]
        elif order != HEADS_OUT:
            return None
        reshape = graph.producer(split)
        if reshape is None or not is_op(reshape, "Reshape"):
            return None
        before, after = graph.shape(reshape.input[0]), graph.shape(split)
        if before is None or after is None or not _is_joined(after, before):
            return None
        sources.append(str(reshape.input[0]))
    return joined, sources, int(heads[1] or 0)


def _is_joined(wide: Sequence[int | str | None], flat: Sequence[int | str | None]) -> bool:
    """Whether [batch, tokens, heads, size] became [batch, tokens, heads * size]."""
    if len(wide) != 4 or len(flat) != 3 or not all(isinstance(dim, int) for dim in (*wide[2:], flat[2])):
        return False
    return None not in flat and list(wide[:2]) == list(flat[:2]) and flat[2] == int(wide[2] or 0) * int(wide[3] or 0)


@verified(Tolerance())
class MergeProducts(Transformation[NoOptions]):
    """Products of one value by several constant matrices -> one product and a Split, where that is fewer nodes.

    Queries, keys and values are such products: three products with biases are six nodes, one with a Split is three.
    """

    def call(self, graph: Graph) -> int:
        """Look at the readers of each value once."""
        if graph.opset() < 13:
            return 0
        sources = dict.fromkeys(str(node.input[0]) for node in graph.nodes if is_op(node, "MatMul"))
        return sum(_merge(graph, source) for source in sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    node: NodeProto
    weight: Array
    add: NodeProto | None
    bias: Array | None

    @property
    def result(self) -> str:
        return str((self.add or self.node).output[0])


def _merge(graph: Graph, source: str) -> bool:
    found = [made for node in graph.users(source) if (made := _product(graph, node, source)) is not None]
    for biased in (True, False):
        group = [made for made in found if (made.bias is not None) is biased]
        group = [made for made in group if made.weight.dtype == group[0].weight.dtype]
        if len(group) * (2 if biased else 1) > (3 if biased else 2):
            _join(graph, source, group, biased=biased)
            return True
    return False


def _product(graph: Graph, node: NodeProto, source: str) -> _Product | None:
    weight = graph.array(node.input[1]) if is_op(node, "MatMul") and node.input[0] == source else None
    if weight is None or weight.ndim != 2 or weight.dtype.kind != "f" or graph.is_output(node.output[0]):
        return None
    add = graph.only_user(node.output[0])
    if add is not None and is_op(add, "Add"):
        bias = graph.array(add.input[1] if add.input[0] == node.output[0] else add.input[0])
        if bias is not None and bias.shape == weight.shape[1:] and not graph.is_output(add.output[0]):
            return _Product(node=node, weight=weight, add=add, bias=bias)
    return _Product(node=node, weight=weight, add=None, bias=None)


def _join(graph: Graph, source: str, group: Sequence[_Product], *, biased: bool) -> None:
    names = [made.result for made in group]
    for made in group:
        graph.remove(made.node)
        if made.add is not None:
            graph.remove(made.add)
    hint = names[0]
    weight = graph.add_constant(np.concatenate([made.weight for made in group], axis=1), f"{hint}_weights")
    value = graph.add("MatMul", [source, weight], f"{hint}_products").output[0]
    if biased:
        biases = [made.bias for made in group if made.bias is not None]
        bias = graph.add_constant(np.concatenate(biases), f"{hint}_biases")
        value = graph.add("Add", [value, bias], f"{hint}_biased").output[0]
    sizes = graph.add_constant(np.array([made.weight.shape[1] for made in group], np.int64), f"{hint}_sizes")
    graph.add_node(helper.make_node("Split", [value, sizes], names, axis=-1))
