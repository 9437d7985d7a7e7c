"""Operators that read or write at indices: gathers, scatters, one-hot, triangles.

An index counts from the end where it is negative. One beyond the ends, which ONNX forbids, reads the nearest element
and writes nothing: a kernel never leaves its operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport


def _counted(node: NodeImport, index: int, axis: int) -> Any:
    """Return an operand that holds indices of an axis of the first, none of them negative where all are known."""
    known, extent = node.constant(index), node.shape()[axis]
    dtype = node.dtype(index)
    if known is not None and (isinstance(extent, int) or (known >= 0).all()):
        found = known if (known >= 0).all() else (known + (known < 0) * int(extent)).astype(known.dtype)  # type: ignore[arg-type]
        return node.const(found, dtype)
    indices = node.input(index)
    if dtype.startswith("uint"):
        return indices
    if isinstance(extent, int):
        from_end = node.emit(op.add(indices, node.const(extent, dtype)))
        return node.emit(op.where(node.emit(op.less(indices, node.const(0, dtype))), from_end, indices))
    return node.kernel(_from_front, indices, sizes=[extent], name="indices")


def _from_front(indices: Any, extent: Any) -> Any:
    def element(*at: Any) -> Any:
        index = indices(*at)
        return tirx.Select(index < 0, index + extent.astype(indices.dtype), index)

    return te.compute(indices.shape, element, name="indices")


def _within(index: Any, extent: Any) -> Any:
    """Return an index that a tensor expression reads, counted from the front and kept within the axis."""
    place = index.astype("int64")
    place = tirx.Select(place < 0, place + extent, place)
    return tirx.max(tirx.min(place, extent - 1), 0)


def _gather(node: NodeImport) -> Any:
    axis = node.axis(0)
    return op.take(node.input(0), _counted(node, 1, axis), axis, mode="clip")


def _gather_elements(node: NodeImport) -> Any:
    axis = node.axis(0)

    def gathered(data: Any, indices: Any) -> Any:
        def element(*at: Any) -> Any:
            place = list(at)
            place[axis] = _within(indices(*at), data.shape[axis])
            return data(*place)

        return te.compute(indices.shape, element, name="gather_elements")

    return node.kernel(gathered, node.input(0), node.input(1), name="gather_elements")


def _gather_nd(node: NodeImport) -> Any:
    batch, depth = int(node.attributes.get("batch_dims", 0)), node.shape(1)[-1]
    if not isinstance(depth, int):
        raise NotImplementedError("a number of indices that is not known")
    outer = node.rank(1) - 1

    def gathered(data: Any, indices: Any, *extents: Any) -> Any:
        def element(*at: Any) -> Any:
            read = [_within(indices(*at[:outer], position), data.shape[batch + position]) for position in range(depth)]
            return data(*at[:batch], *read, *at[outer:])

        return te.compute(extents, element, name="gather_nd")

    return node.kernel(gathered, node.input(0), node.input(1), sizes=node.result_shape(), name="gather_nd")


def _one_hot(node: NodeImport) -> Any:
    """OneHot: indices, of any type, compared with 0 to depth - 1; what is beyond them is off everywhere."""
    axis = node.axis(-1, rank=node.rank() + 1)

    def one_hot(indices: Any, values: Any, *extents: Any) -> Any:
        depth = extents[axis]

        def element(*at: Any) -> Any:
            index = indices(*at[:axis], *at[axis + 1 :]).astype("int64")
            index = tirx.Select(index < 0, index + depth, index)
            return tirx.Select(index.equal(at[axis]), values(1), values(0))

        return te.compute(extents, element, name="one_hot")

    return node.kernel(one_hot, node.input(0), node.input(2), sizes=node.result_shape(), name="one_hot")


def _trilu(node: NodeImport) -> Any:
    """Trilu: the upper or the lower triangle of each matrix, from the ``k``-th diagonal on."""
    upper, rank = bool(node.attributes.get("upper", 1)), node.rank()
    contents = node.scope.contents(node.name(1)) if node.has(1) else [0]
    is_flag = node.dtype() == "bool"

    def triangle(data: Any, diagonal: Any) -> Any:
        def element(*at: Any) -> Any:
            offset = diagonal if contents is not None else diagonal(*(0 for _ in diagonal.shape))
            along = at[rank - 1] - at[rank - 2]
            kept = along >= offset if upper else along <= offset
            return tirx.all(kept, data(*at)) if is_flag else tirx.Select(kept, data(*at), tirx.const(0, data.dtype))

        return te.compute(data.shape, element, name="triangle")

    if contents is None:
        return node.kernel(triangle, node.input(0), node.input(1), name="triangle")
    return node.kernel(triangle, node.input(0), sizes=contents, name="triangle")


def _tensor_scatter(node: NodeImport) -> Any:
    """TensorScatter: a cache with an update written from an index of its own for each sequence on."""
    axis, is_circular = node.axis(-2), node.text("mode", "linear") == "circular"

    def written(cache: Any, update: Any, *starts: Any) -> Any:
        def element(*at: Any) -> Any:
            start = starts[0](at[0]).astype("int64") if starts else tirx.const(0, "int64")
            place = at[axis] - start
            place = tirx.floormod(place, cache.shape[axis]) if is_circular else place
            fits = tirx.all(place >= 0, place < update.shape[axis])
            return tirx.if_then_else(fits, update(*at[:axis], place, *at[axis + 1 :]), cache(*at))

        return te.compute(cache.shape, element, name="tensor_scatter")

    operands = [node.input(index) for index in range(3) if node.has(index)]
    return node.kernel(written, *operands, name="tensor_scatter")


CONVERTERS: Mapping[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "TensorScatter": _tensor_scatter,
    "Trilu": _trilu,
}
