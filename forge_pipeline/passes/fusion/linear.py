"""Linear operators in a row, and pointwise convolutions of images that were enlarged.

A convolution of one pixel and an interpolation commute: one mixes channels and the other pixels, and each weighs by
numbers that do not depend on the other's axis. Sources: the decoder of Xie et al., "SegFormer", 2021, section 3.2, and
of Ranftl et al., "Vision Transformers for Dense Prediction", 2021, section 3.1, enlarge before they project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.fusion.fold_affine import fit, per_channel
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, clone, is_op, set_attribute
from forge_pipeline.passes.value_types import Shape

MOST_LEFT = 0.4
"""What part of its multiply-adds a convolution may have left: to add images up takes time too."""

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
            weight = _mixing(graph, node) if chain is not None else None  # no other weight is read, as it may be large
            if chain is not None and weight is not None:
                changes += _merge(graph, chain, node, weight)
        return changes


@verified(Tolerance())
class MixBeforeResize(Transformation[NoOptions]):
    """A Conv of one pixel behind a Resize that enlarges, or behind a Concat with such, comes before it.

    Images of fewer pixels are multiplied, and those behind a Concat are added up.
    """

    def call(self, graph: Graph) -> int:
        """Move each convolution whose multiply-adds become so much fewer that sums are paid for."""
        return sum(_mix_before(graph, node) for node in graph.nodes if node in graph and is_op(node, "Conv"))


def _mixing(graph: Graph, node: NodeProto) -> Array | None:
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
    before, after = graph.shape(view.input[0]), graph.shape(view.output[0])
    if not is_op(view, "Reshape") or graph.array(view.input[1]) is None or before is None or after is None:
        return None
    if None not in after[: axis + 1] and before[: axis + 1] == after[: axis + 1]:
        return axis
    inner = _known_product(after[axis:])
    same = (place for place in range(len(before)) if before[place] == after[axis])
    return next((place for place in same if inner and _known_product(before[place:]) == inner), None)


def _known_product(shape: Shape) -> int | None:
    sizes = [size for size in shape if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) else None


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
        entries = np.array(graph.array(view.input[1])) if is_op(view, "Reshape") else np.zeros(0)
        if entries.size and entries[axis] > 0:
            entries[axis] = bias.size
            graph.set_input(view, 1, graph.add_constant(entries, f"{target}_shape"))
    for maker, reader in pairwise(row):
        name = graph.fresh(f"{target}_narrow")
        graph.set_output(maker, 0, name)
        graph.set_input(reader, 0, name)
    graph.set_output(row[-1], 0, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a convolution reads, or a part of it behind a Concat, and the Resize that enlarged it, if one did."""

    name: str
    channels: int
    share: float
    """Pixels of what the Resize reads, as a part of those that it gives."""
    resize: NodeProto | None


def _mix_before(graph: Graph, node: NodeProto) -> bool:
    maker = graph.producer(node.input[0])
    if maker is None or graph.only_user(node.input[0]) is None or not is_op(maker, "Concat", "Resize"):
        return False
    is_joint = is_op(maker, "Concat") and attribute(maker, "axis") == 1
    parts = [_part(graph, name) for name in (maker.input if is_joint else node.input[:1])]
    known = [part for part in parts if part is not None]
    small = [part for part in known if part.resize is not None]
    weight = _mixing(graph, node) if small and len(known) == len(parts) else None
    if weight is None:
        return False
    left = sum(part.channels * part.share for part in known)
    too_wide = weight.shape[1] > sum(part.channels for part in small)
    if left > MOST_LEFT * weight.shape[0] or too_wide:
        return False
    _move_before(graph, node, known, weight)
    for gone in ([maker] if is_joint else []) + [part.resize for part in small if part.resize is not None]:
        graph.remove(gone)
    return True


def _part(graph: Graph, name: str) -> _Part | None:
    shape, resize = graph.shape(name), graph.producer(name)
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        return None
    if resize is not None and is_op(resize, "Resize") and graph.only_user(name) is not None:
        share = _share(graph, resize) if _interpolates(graph, resize) else None
        if share is not None and share < 1:
            return _Part(name=str(resize.input[0]), channels=shape[1], share=share, resize=resize)
    return _Part(name=name, channels=shape[1], share=1.0, resize=None)


def _share(graph: Graph, resize: NodeProto) -> float | None:
    """Return how many pixels a Resize reads for one that it gives, where that is known."""
    if not _is_sized(graph, resize):
        scales = graph.array(resize.input[2])
        return None if scales is None else 1 / float(np.prod(scales))
    before, after = ((graph.shape(name) or ())[2:] for name in (resize.input[0], resize.output[0]))
    read, given = _known_product(before), _known_product(after)
    return read / given if read and given else None


def _interpolates(graph: Graph, resize: NodeProto) -> bool:
    """Whether a Resize weighs pixels of one image, and neither makes some up nor resizes batches or channels."""
    before, after = graph.shape(resize.input[0]), graph.shape(resize.output[0])
    if graph.opset() < 11 or before is None or after is None:
        return False
    if attribute(resize, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return False
    axes: list[int] | None = attribute(resize, "axes")
    if axes is not None:
        return min(axis % len(before) for axis in axes) > 1
    if not _is_sized(graph, resize):
        scales = graph.array(resize.input[2])
        return scales is not None and scales.size == len(before) and bool((scales[:2] == 1).all())
    is_same = None not in before[:2] and before[:2] == after[:2]
    is_stretched = attribute(resize, "keep_aspect_ratio_policy", "stretch") == "stretch"
    return is_same and is_stretched and (graph.opset() >= 18 or isinstance(after[0], int))


def _is_sized(graph: Graph, resize: NodeProto) -> bool:
    """Whether sizes say what a Resize gives, and not scales, which are empty then, or the other way round."""
    sizes = graph.array(resize.input[3]) if len(resize.input) > 3 else None
    return len(resize.input) > 3 and bool(resize.input[3]) and (sizes is None or sizes.size > 0)


def _move_before(graph: Graph, node: NodeProto, parts: Sequence[_Part], weight: Array) -> None:
    """Multiply each image that is enlarged by itself, and all others in one; enlarge, and add up."""
    ends = list(accumulate(part.channels for part in parts))
    rows = [(part, weight[end - part.channels : end]) for part, end in zip(parts, ends, strict=True)]
    large = [(part.name, own) for part, own in rows if part.resize is None]
    target, bias, values = node.output[0], list(node.input[2:]), list[str]()
    if large:
        names = [name for name, _ in large]
        joint = names[0] if len(names) == 1 else graph.add("Concat", names, f"{target}_joint", axis=1).output[0]
        values.append(_mixed(graph, node, joint, np.concatenate([own for _, own in large]), bias))
    for part, own in rows:
        if part.resize is not None:
            mixed = _mixed(graph, node, part.name, own, [] if values else bias)
            values.append(_enlarged(graph, part.resize, mixed, own.shape[1], target))
    graph.remove(node)
    total = values[0]
    for value in values[1:]:
        total = graph.add("Add", [total, value], f"{target}_sum").output[0]
    maker = graph.producer(total)
    if maker is not None:
        graph.set_output(maker, 0, target)


def _mixed(graph: Graph, node: NodeProto, name: str, weight: Array, bias: Sequence[str]) -> str:
    """Add a convolution like ``node`` of another image, by weights (channels in, channels out)."""
    target = node.output[0]
    kernel = weight.T.reshape(weight.shape[1], weight.shape[0], *(1,) * ((graph.rank(name) or 0) - 2))
    inputs = [name, graph.add_constant(kernel, f"{node.input[1]}_part"), *bias]
    return str(graph.add("Conv", inputs, f"{target}_part").output[0])


def _enlarged(graph: Graph, resize: NodeProto, name: str, channels: int, hint: str) -> str:
    """Add a Resize like ``resize`` of an image with other channels."""
    moved = clone(resize)
    moved.name, moved.input[0], moved.output[0] = "", name, graph.fresh(f"{hint}_enlarged")
    if attribute(resize, "axes") is None and _is_sized(graph, resize):
        sizes = list(graph.shape(resize.output[0]) or ())
        if graph.opset() >= 18:
            set_attribute(moved, "axes", list(range(2, len(sizes))))
            sizes = sizes[2:]
        else:
            sizes[1] = channels
        moved.input[3] = graph.add_constant(np.array(sizes, np.int64), f"{hint}_sizes")
    graph.add_node(moved)
    return str(moved.output[0])
