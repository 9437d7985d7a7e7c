"""Linear operators in a row: one takes the place of two where it multiplies less."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.fusion.fold_affine import fit, per_channel
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.passes.open_sizes import has_entry, product, with_entry

MOST_PRODUCTS = 1 << 31
"""To multiply weights by weights: some 3 s."""


@verified(Tolerance())
class MergeLinear(Transformation[NoOptions]):
    """Two linear operators with nothing but a bias and views between them are one, where that multiplies less.

    The second is a MatMul, or a Conv of one pixel; the first a MatMul, or any Conv. Weights are multiplied in float64.
    """

    def call(self, graph: Graph) -> int:
        """Merge in order, so that three in a row are one in two steps."""
        changes = 0
        for node in graph.nodes:
            chain = _above(graph, node) if is_op(node, "Conv", "MatMul") else None
            weight = mixing(graph, node) if chain is not None else None  # no other weight is read, as it may be large
            if chain is not None and weight is not None:
                changes += _merge(graph, chain, node, weight)
        return changes


def mixing(graph: Graph, node: NodeProto) -> Array | None:
    """Return the (channels in, channels out) that an operator multiplies every pixel or row by."""
    weight = graph.array(node.input[1])
    if weight is None or weight.dtype.kind != "f":
        return None
    if node.op_type == "MatMul":
        return weight if weight.ndim == 2 else None
    plain = attribute(node, "group", 1) == 1 and not any(attribute(node, "pads", []))
    if not plain or set(weight.shape[2:]) != {1} or set(attribute(node, "strides", [1])) != {1}:
        return None
    return weight.reshape(weight.shape[:2]).T


@dataclass(frozen=True, slots=True)
class _Chain:
    """From a linear operator down: what adds constants to its channels, and views, each read by the next alone."""

    first: NodeProto
    adds: list[NodeProto]
    views: list[tuple[NodeProto, int]]
    """With the axis that the channels have behind it."""


def _above(graph: Graph, node: NodeProto) -> _Chain | None:
    """Return what an operator that mixes channels reads, up to another one."""
    adds: list[NodeProto] = []
    views: list[tuple[NodeProto, int]] = []
    name = node.input[0]
    axis = 1 if node.op_type == "Conv" else (graph.rank(name) or 0) - 1
    while True:
        maker, rank = graph.producer(name), graph.rank(name)
        if maker is None or rank is None or axis < 1 or graph.only_user(name) is None:
            return None
        if is_op(maker, "Conv", "MatMul"):
            is_whole = axis == (1 if maker.op_type == "Conv" else rank - 1) and attribute(maker, "group", 1) == 1
            return _Chain(maker, adds, views[::-1]) if is_whole else None
        source = maker.input[int(is_op(maker, "Add") and graph.is_constant(maker.input[0]))]
        above = _axis_above(graph, maker, axis)
        if above is not None:
            views.append((maker, axis))
            axis = above
        elif is_op(maker, "Add") and axis == rank - 1 and graph.rank(source) == rank:
            adds.append(maker)
        else:
            return None
        name = source


def _axis_above(graph: Graph, view: NodeProto, axis: int) -> int | None:
    """Return which axis of what a view reads is ``axis`` of what it gives, where the view leaves that one whole."""
    if is_op(view, "Transpose"):
        order = attribute(view, "perm")
        return None if order is None else int(order[axis])
    if not is_op(view, "Reshape") or not has_entry(graph, view.input[1], axis):
        return None
    before, after = graph.open_shape(view.input[0]), graph.open_shape(view.output[0])
    if before is None or after is None:
        return None
    if None not in after[: axis + 1] and before[: axis + 1] == after[: axis + 1]:
        return axis
    inner = product(after[axis:])
    same = (place for place in range(len(before)) if before[place] == after[axis])
    return next((place for place in same if inner is not None and product(before[place:]) == inner), None)


def _merge(graph: Graph, chain: _Chain, node: NodeProto, second: Array) -> bool:
    first, (inner, outer) = chain.first, second.shape
    weight = graph.array(first.input[1])
    if weight is None or weight.dtype != second.dtype or (first.op_type == "MatMul" and weight.ndim != 2):
        return False
    if weight.size // inner * outer >= weight.size + second.size:
        return False
    owners = (first, *chain.adds)
    added = [array for owner in owners if (array := _bias(graph, owner, inner)) is not None]
    last = _bias(graph, node, outer)
    if last is None or len(added) != len(owners) or weight.size * outer > MOST_PRODUCTS:
        return False
    channels = weight.reshape(inner, -1) if first.op_type == "Conv" else weight.T
    *rows, bias = _product(np.column_stack([channels, sum(added, np.zeros(inner))]), second)
    product = np.array(rows).T.reshape(outer, *weight.shape[1:]) if first.op_type == "Conv" else np.array(rows)
    bias = bias + last
    if not fit(weight, product, bias):
        return False
    _rebuild(graph, chain, node, product.astype(weight.dtype), bias.astype(weight.dtype))
    return True


def _product(left: Array, right: Array) -> Array:
    """Return ``left.T @ right`` in float64, added up in order: the same bits on every machine, which BLAS has not."""
    total = np.zeros((left.shape[1], right.shape[1]))
    term = np.empty_like(total)
    for column, row in zip(left.astype(np.float64), right.astype(np.float64), strict=True):
        total += np.multiply(column[:, None], row, out=term)
    return total


def _bias(graph: Graph, node: NodeProto, channels: int) -> Array | None:
    """Return what a Conv or an Add adds to each channel, as float64; None where that is not constant."""
    index = 2 if node.op_type == "Conv" else int(not graph.is_constant(node.input[0]))
    if node.op_type == "MatMul" or len(node.input) <= index or not node.input[index]:
        return np.zeros(channels)
    array = graph.array(node.input[index])
    entries = None if array is None else per_channel(array, array.ndim, array.ndim - 1)
    return None if entries is None or entries.size not in (1, channels) else np.broadcast_to(entries, channels)


def _rebuild(graph: Graph, chain: _Chain, node: NodeProto, product: Array, bias: Array) -> None:
    """Put one operator in the place of two. Values between have new names, as they have other channels."""
    first, target = chain.first, node.output[0]
    for gone in (node, *chain.adds):
        graph.remove(gone)
    graph.set_input(first, 1, graph.add_constant(product, f"{target}_merged"))
    row = [first]
    if first.op_type == "MatMul" and bias.any():
        name = graph.add_constant(bias, f"{target}_bias")
        row.append(graph.add("Add", [first.output[0], name], f"{target}_shifted"))
    elif first.op_type == "Conv":
        biased = [graph.add_constant(bias, f"{target}_bias")] if bias.any() else []
        graph.set_inputs(first, [*first.input[:2], *biased])
    for view, axis in chain.views:
        row.append(view)
        shape = with_entry(graph, view.input[1], axis, bias.size, f"{target}_shape") if is_op(view, "Reshape") else None
        if shape is not None:
            graph.set_input(view, 1, shape)
    for maker, reader in pairwise(row):
        name = graph.fresh(f"{target}_narrow")
        graph.set_output(maker, 0, name)
        graph.set_input(reader, 0, name)
    graph.set_output(row[-1], 0, target)
