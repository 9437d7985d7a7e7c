"""Operators that order values along an axis, add them up along it, or put them where indices say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.sorting.cumulative import cumulative
from forge_pipeline.codegen.sorting.extreme import extreme
from forge_pipeline.codegen.sorting.scatter import scatter_elements, scatter_nd
from forge_pipeline.codegen.sorting.top_k import top_k


def _top_k(node: NodeImport) -> Any:
    """TopK, always sorted; the number of results is an operand from set 10 on, and any extent."""
    axis = node.axis(-1)
    largest = bool(node.attributes.get("largest", 1))
    return top_k(node.scope.builder, node.input(0), node.size(node.result_shape()[axis]), axis=axis, largest=largest)


def _cumulative(node: NodeImport, *, product: bool) -> Any:
    """CumSum and CumProd. Along an axis that data says, they are computed along each, and one of them is taken."""
    known = node.constant(1)
    exclusive, reverse = (bool(node.attributes.get(name, 0)) for name in ("exclusive", "reverse"))
    axes = range(node.rank()) if known is None else known.reshape(-1).tolist()
    builder, value = node.scope.builder, node.input(0)
    found, *others = [
        cumulative(builder, value, axis=axis, product=product, exclusive=exclusive, reverse=reverse) for axis in axes
    ]
    for axis, other in enumerate(others, start=1):
        wanted = [node.const(place, node.dtype(1)) for place in (axis, axis - node.rank())]
        hits = [node.emit(op.equal(node.input(1), place)) for place in wanted]
        is_it = node.emit(op.reshape(op.logical_or(*hits), [1] * node.rank()))
        found = node.emit(op.where(is_it, other, found))
    return found


def _extreme(node: NodeImport, *, largest: bool) -> Any:
    axis, last = node.axis(0), bool(node.attributes.get("select_last_index", 0))
    places = extreme(node.scope.builder, node.input(0), axis=axis, largest=largest, last=last)
    return node.reshape(places, node.result_shape())


def _scatter_elements(node: NodeImport) -> Any:
    """ScatterElements, and Scatter, which it was before set 11."""
    reduction = node.text("reduction", "none")
    operands = (node.input(0), node.input(1), node.input(2))
    return scatter_elements(node.scope.builder, *operands, axis=node.axis(0), reduction=reduction)


def _scatter_nd(node: NodeImport) -> Any:
    depth = node.shape(1)[-1]
    if not isinstance(depth, int):
        raise NotImplementedError("a number of indices that is not known")
    operands = (node.input(0), node.input(1), node.input(2))
    return scatter_nd(node.scope.builder, *operands, depth=depth, reduction=node.text("reduction", "none"))


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": partial(_extreme, largest=True),
    "ArgMin": partial(_extreme, largest=False),
    "CumProd": partial(_cumulative, product=True),
    "CumSum": partial(_cumulative, product=False),
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
}
