"""Constants around a tensor; in blocked images, further channels behind their own too."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, ints
from forge_pipeline.codegen.tir import primitives

NAME = "around"


def pad(graph: Graph, call: relax.Call) -> Value | None:
    """Stay in the layout; a constant that is not finite would meet the zeros of a block's missing channels' weights."""
    value, filler, edges = graph.look(call.args[0]), float(call.attrs.pad_value), ints(call.attrs.pad_width)
    if call.attrs.pad_mode != "constant" or min(edges) < 0:
        return None
    if not has_known_shape(call.args[0], symbolic_axes=range(len(edges) // 2)):
        return None
    if len(edges) != 8 or any(edges[:3]) or not math.isfinite(filler) or not graph.is_blocked(value):
        return Value(plain=graph.kernel(_around, graph.plain(value), name="pad", edges=edges, filler=filler))
    channels = value.channels + edges[3]
    padded = graph.kernel(
        around, value.blocked, name="pad", edges=edges[4:], filler=filler, channels=(value.channels, channels),
        lanes=graph.block(channels),
    )  # fmt: skip
    return Value(blocked=padded, channels=channels)


def around(image: te.Tensor, edges: tuple[int, ...], filler: float, channels: tuple[int, int], lanes: int) -> te.Tensor:
    """Describe a blocked image within ``edges`` (top, bottom, left, right) and with more ``channels`` than it had."""
    batch, blocks, height, width, width_of_block = image.shape
    (top, bottom, left, right), (before, after) = edges, channels
    constant = tirx.const(filler, image.dtype)

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        pixel = (h - top, w - left)
        if lanes == width_of_block:
            found = image(n, block, *pixel, lane)
        else:  # one block of all channels, which becomes wider
            found = image(n, 0, *pixel, tirx.min(lane, width_of_block - 1))
        if before % lanes:  # both are there to be read: vectors without a test
            found = tirx.Select(block * lanes + lane < before, found, constant)
        inside = [h >= top, h < height + top, w >= left, w < width + left, block < blocks]
        return tirx.if_then_else(tirx.all(*inside), found, constant)

    shape = (batch, -(-after // lanes), height + top + bottom, width + left + right, lanes)
    return te.compute(shape, element, name="padded", attrs={primitives.FAMILY: NAME})


def _around(tensor: te.Tensor, edges: tuple[int, ...], filler: float) -> te.Tensor:
    """Describe a tensor within ``edges``, before and after each axis."""
    pairs = list(zip(edges[::2], edges[1::2], tensor.shape, strict=True))

    def element(*at: Any) -> Any:
        inside = [
            condition
            for place, (before, after, extent) in zip(at, pairs, strict=True)
            for condition in (*([place >= before] if before else []), *([place < extent + before] if after else []))
        ]
        found = tensor(*(place - before for place, (before, _, _) in zip(at, pairs, strict=True)))
        return tirx.if_then_else(tirx.all(*inside), found, tirx.const(filler, tensor.dtype)) if inside else found

    shape = [extent + (before + after) for before, after, extent in pairs]
    return te.compute(shape, element, name="padded")


HANDLERS = {"relax.nn.pad": pad}
