"""Convolution over three axes: the taps along the depth become channels, the depths become a batch of images.

    y[n, f, d] = sum over k of conv2d(x[n, :, d s + k e - p], w[f, :, k])

So every image algorithm serves volumes too, Winograd's included. The input is copied once for each tap along the depth,
in the order that the algorithm reads; against the arithmetic on each copied number that is little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.float32.conv.computed_weights import weights_of
from forge_pipeline.codegen.float32.conv.convolution import Convolution
from forge_pipeline.codegen.float32.conv.geometry import Geometry, simplify
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value, dtype_of, has_known_shape, ints, shape_of

OPEN = (0, 2, 3, 4)
"""Axes of a volume whose extents may be symbolic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """A convolution along the depth: the volume's extent, taps, stride, dilation, padding before and behind it.

    The extent may be symbolic.
    """

    size: Any
    kernel: int
    stride: int
    dilation: int
    before: int
    behind: int

    @property
    def output(self) -> Any:
        """Images of the result."""
        taps = self.dilation * (self.kernel - 1) + 1
        return simplify((self.size + (self.before + self.behind - taps)) // self.stride + 1)

    @property
    def last(self) -> Any:
        """The last place that is read."""
        return (self.output - 1) * self.stride + (self.kernel - 1) * self.dilation - self.before

    def of(self, volume: te.Tensor) -> Depth:
        """Return it inside a kernel, where an open extent is that of its ``volume``."""
        return self if isinstance(self.size, int) else replace(self, size=volume.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv3d:
    """A convolution that is not emitted yet: ``weight`` (filters, channels / groups, depth, height, width).

    ``geometry`` is that of the images; channels are those of the volume. ``stored`` is a `Convolution`'s.
    """

    source: Value
    weight: Array
    bias: Array | None
    depth: Depth
    geometry: Geometry
    stored: Stored | None = None

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return self.geometry.filters

    def scaled(self, scale: Array, shift: Array) -> Conv3d:
        """Return the convolution followed by ``* scale + shift`` for each filter."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return replace(self, weight=self.weight * scale.reshape(-1, 1, 1, 1, 1), bias=bias)

    def emit(self, graph: Graph) -> Value:
        """Unfold the depth, convolve images, fold it again; the result is plain."""
        plain = graph.plain(self.source)
        source, weight, geometry = unfold_depth(
            graph, plain, self.weight, self.depth, self.geometry, in_blocks=not graph.channels_last
        )
        images = Convolution(source=source, weight=weight, bias=self.bias, geometry=geometry, stored=self.stored)
        batch = None if geometry.is_static and isinstance(self.depth.size, int) else shape_of(plain)[0]
        return fold_depth(graph, images.emit(graph).blocked, self.filters, self.depth.output, batch)


def unfold_depth(
    graph: Graph, plain: relax.Expr, weight: Array, depth: Depth, geometry: Geometry, *fillers: relax.Expr,
    filler: int = 0, in_blocks: bool = True,
) -> tuple[Value, Array, Geometry]:  # fmt: skip
    """Return a volume as images, and the weights and the geometry with which they are convolved.

    Around the volume is ``filler``, or the number that one of ``fillers`` holds when the model runs. ``in_blocks``
    permits blocked images.
    """
    lanes = graph.machine.lanes
    taps = weight.transpose(0, 2, 1, 3, 4)  # (filters, depth, channels / groups, height, width)
    if in_blocks and geometry.groups == 1 and geometry.channels >= lanes:
        blocks = -(-geometry.channels // lanes)
        taps = np.pad(taps, ((0, 0), (0, 0), (0, blocks * lanes - geometry.channels), (0, 0), (0, 0)))
        image = graph.kernel(
            _unfold_blocks, plain, *fillers, name="unfold_depth", depth=depth, lanes=lanes, filler=filler
        )
        source = Value(blocked=_counted(graph, image, geometry), channels=blocks * lanes * depth.kernel)
    else:
        groups = geometry.groups
        image = graph.kernel(_unfold, plain, *fillers, name="unfold_depth", depth=depth, groups=groups, filler=filler)
        source = Value(plain=_counted(graph, image, geometry))
    flat = taps.reshape(taps.shape[0], -1, *geometry.kernel)
    return source, flat, replace(geometry, channels=flat.shape[1] * geometry.groups)


def _counted(graph: Graph, images: relax.Expr, geometry: Geometry) -> relax.Expr:
    """Return images of an open size whose number has a name of its own: TVM fuses nothing else with several extents."""
    batch, *image = shape_of(images)
    if isinstance(batch, int | tirx.Var) or geometry.is_static:
        return images
    kind = relax.TensorType([tirx.Var("images", "int64"), *image], dtype_of(images))
    return graph.builder.match_cast(images, kind)


def fold_depth(graph: Graph, images: relax.Expr, filters: int, depth: Any, batch: Any = None) -> Value:
    """Return a blocked batch of images as the volumes, of ``depth`` images each, that they are; ``batch`` if open."""
    if batch is None:
        return Value(plain=graph.kernel(_fold, images, name="fold_depth", filters=filters, depth=depth))
    volumes = graph.emit(relax.op.reshape(images, (batch, depth, *shape_of(images)[1:])))
    return Value(plain=graph.kernel(_fold_volumes, volumes, name="fold_depth", filters=filters))


def as_images(graph: Graph, plain: relax.Expr) -> Value:
    """Return a volume as a blocked batch of its images."""
    _, channels, size, _, _ = shape_of(plain)
    depth = Depth(size=size, kernel=1, stride=1, dilation=1, before=0, behind=0)
    image = graph.kernel(
        _unfold_blocks, plain, name="unfold_depth", depth=depth, lanes=graph.block(channels), filler=0
    )  # fmt: skip
    return Value(blocked=image, channels=channels)


def _unfold_blocks(volume: te.Tensor, *fillers: te.Tensor, depth: Depth, lanes: int, filler: int) -> te.Tensor:
    """Describe (N, C, D, H, W) as (N * depths, taps * C / lanes, H, W, lanes)."""
    batch, channels, _, height, width = volume.shape
    channels, depth = int(channels), depth.of(volume)
    blocks = -(-channels // lanes)
    outside = _outside(volume, fillers, filler)

    def element(image: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        channel = block % blocks * lanes + lane
        conditions = [] if channels % lanes == 0 else [channel < channels]
        return _voxel(volume, depth, image, block // blocks, channel, h, w, outside, conditions)

    shape = (batch * depth.output, depth.kernel * blocks, height, width, lanes)
    return te.compute(shape, element, name="unfold_depth")


def _unfold(volume: te.Tensor, *fillers: te.Tensor, depth: Depth, groups: int, filler: int) -> te.Tensor:
    """Describe (N, C, D, H, W) as (N * depths, groups * taps * C / groups, H, W)."""
    batch, channels, _, height, width = volume.shape
    inputs, depth = int(channels) // groups, depth.of(volume)
    outside = _outside(volume, fillers, filler)

    def element(image: Any, c: Any, h: Any, w: Any) -> Any:
        channel = c // (inputs * depth.kernel) * inputs + c % inputs
        return _voxel(volume, depth, image, c // inputs % depth.kernel, channel, h, w, outside, [])

    return te.compute((batch * depth.output, int(channels) * depth.kernel, height, width), element, name="unfold_depth")


def _outside(volume: te.Tensor, fillers: tuple[te.Tensor, ...], filler: int) -> Any:
    return fillers[0]() if fillers else tirx.const(filler, volume.dtype)


def _voxel(
    volume: te.Tensor, depth: Depth, image: Any, tap: Any, channel: Any, h: Any, w: Any, outside: Any,
    conditions: list[Any],
) -> Any:  # fmt: skip
    """Return what tap ``tap`` reads for result ``image``, and what is ``outside`` of the volume."""
    place = image % depth.output * depth.stride + tap * depth.dilation - depth.before
    conditions = list(conditions)
    if depth.before > 0:
        conditions.append(place >= 0)
    if depth.behind > 0 if not isinstance(depth.size, int) else depth.last >= depth.size:
        conditions.append(place < depth.size)
    value = volume[image // depth.output, channel, place, h, w]
    if not conditions:
        return value
    inside = tirx.all(*conditions) if len(conditions) > 1 else conditions[0]
    return tirx.if_then_else(inside, value, outside)


def _fold_volumes(images: te.Tensor, filters: int) -> te.Tensor:
    """Describe (N, depth, F / lanes, H, W, lanes) as (N, F, depth, H, W)."""
    batch, depth, _, height, width, lanes = images.shape
    lanes = int(lanes)
    return te.compute(
        (batch, filters, depth, height, width),
        lambda n, f, d, h, w: images[n, d, f // lanes, h, w, f % lanes],
        name="fold_depth",
    )


def _fold(images: te.Tensor, filters: int, depth: int) -> te.Tensor:
    """Describe (N * depth, F / lanes, H, W, lanes) as (N, F, depth, H, W)."""
    batch, _, height, width, lanes = images.shape
    lanes = int(lanes)
    return te.compute(
        (batch // depth, filters, depth, height, width),
        lambda n, f, d, h, w: images[n * depth + d, f // lanes, h, w, f % lanes],
        name="fold_depth",
    )


def conv3d(graph: Graph, call: relax.Call) -> Value | None:
    """Take every float32 convolution with weights of known sizes, of volumes of any size."""
    attributes, found = call.attrs, weights_of(graph, call.args[1], rank=5)
    if attributes.data_layout != "NCDHW" or not has_known_shape(call.args[0], rank=5, symbolic_axes=OPEN):
        return None
    if found is None:
        return None
    made = make_conv3d(
        graph.look(call.args[0]),
        found[0],
        size=shape_of(call.args[0])[1:],
        strides=ints(attributes.strides),
        padding=ints(attributes.padding),
        dilation=ints(attributes.dilation),
        groups=int(attributes.groups),
        stored=found[1],
    )
    return Value(deferred=made) if made.stored is None else made.emit(graph)


def make_conv3d(
    source: Value, weight: Array, *, size: tuple[Any, ...], strides: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int, stored: Stored | None = None,
) -> Conv3d:  # fmt: skip
    """Return a convolution over (channels, depth, height, width) of ``size``; padding: three begins, three ends."""
    depth, geometry = split_depth(
        weight, size=size, strides=strides, padding=padding, dilation=dilation, groups=groups
    )  # fmt: skip
    return Conv3d(source=source, weight=weight, bias=None, depth=depth, geometry=geometry, stored=stored)


def split_depth(
    weight: Array, *, size: tuple[Any, ...], strides: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> tuple[Depth, Geometry]:  # fmt: skip
    """Return a convolution, as ``make_conv3d`` takes it, along the depth, and over its images."""
    channels, depth_size, *image_size = size
    front, top, left, back, bottom, right = padding
    depth = Depth(
        size=depth_size, kernel=weight.shape[2], stride=strides[0], dilation=dilation[0], before=front, behind=back
    )
    geometry = Geometry(
        channels=channels,
        filters=weight.shape[0],
        groups=groups,
        size=tuple(image_size),
        kernel=(weight.shape[3], weight.shape[4]),
        strides=strides[1:],
        padding=(top, left, bottom, right),
        dilation=dilation[1:],
    )
    return depth, geometry


HANDLERS = {"relax.nn.conv3d": conv3d}
