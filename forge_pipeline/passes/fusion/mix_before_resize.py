"""Pointwise convolutions of images that were enlarged.

A convolution of one pixel and an interpolation commute: one mixes channels and the other pixels, and each weighs by
numbers that do not depend on the other's axis. Sources: the decoder of Xie et al., "SegFormer", 2021, section 3.2, and
of Ranftl et al., "Vision Transformers for Dense Prediction", 2021, section 3.1, enlarge before they project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.fusion.linear import mixing
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, clone, is_op, set_attribute
from forge_pipeline.passes.open_sizes import product, sliced, typical, with_entry

MOST_LEFT = 0.4
"""What part of its multiply-adds a convolution may have left: to add images up takes time too."""


@verified(Tolerance())
class MixBeforeResize(Transformation[NoOptions]):
    """A Conv of one pixel behind a Resize that enlarges, or behind a Concat with such, comes before it.

    Images of fewer pixels are multiplied, and those behind a Concat are added up.
    """

    def call(self, graph: Graph) -> int:
        """Move each convolution whose multiply-adds become so much fewer that sums are paid for."""
        return sum(_mix_before(graph, node) for node in graph.nodes if node in graph and is_op(node, "Conv"))


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
    weight = mixing(graph, node) if small and len(known) == len(parts) else None
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
    shape, resize = graph.open_shape(name), graph.producer(name)
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        return None
    if resize is not None and is_op(resize, "Resize") and graph.only_user(name) is not None:
        share = _share(graph, resize) if _interpolates(graph, resize) else None
        if share is not None and share < 1:
            return _Part(name=str(resize.input[0]), channels=shape[1], share=share, resize=resize)
    return _Part(name=name, channels=shape[1], share=1.0, resize=None)


def _share(graph: Graph, resize: NodeProto) -> float | None:
    """Return how many pixels a Resize reads for one that it gives, at typical sizes where they are open."""
    if not _is_sized(graph, resize):
        scales = graph.array(resize.input[2])
        return None if scales is None else 1 / float(np.prod(scales))
    pixels = [product((graph.open_shape(name) or ())[2:]) for name in (resize.input[0], resize.output[0])]
    read, given = (None if size is None else typical(size) for size in pixels)
    return read / given if read and given else None


def _interpolates(graph: Graph, resize: NodeProto) -> bool:
    """Whether a Resize weighs pixels of one image, and neither makes some up nor resizes batches or channels."""
    before, after = graph.open_shape(resize.input[0]), graph.open_shape(resize.output[0])
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
    return is_same and is_stretched


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
        rank = graph.rank(resize.input[0]) or 0
        pixels = sliced(graph, resize.input[3], 2, rank, f"{hint}_pixels")
        if graph.opset() >= 18:
            set_attribute(moved, "axes", list(range(2, rank)))
            moved.input[3] = pixels
        elif graph.is_constant(resize.input[3]):
            moved.input[3] = with_entry(graph, resize.input[3], 1, channels, f"{hint}_sizes")
        else:
            shape = graph.add("Shape", [name], f"{hint}_shape").output[0]
            images = sliced(graph, shape, 0, 2, f"{hint}_images")
            moved.input[3] = graph.add("Concat", [images, pixels], f"{hint}_sizes", axis=0).output[0]
    graph.add_node(moved)
    return str(moved.output[0])
