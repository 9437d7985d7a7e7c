"""Volumes of bytes as batches of images, and convolutions of them: as ``volume`` has it, the zero point around them.

A result stays a batch of images for those who read it as such.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax

from forge_pipeline.codegen.float32.conv.conv3d import Depth, as_images, fold_depth, split_depth, unfold_depth
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.conv.match import Conv2d, Convolution, convolution_of
from forge_pipeline.codegen.layout.affine import Affine
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, has_known_shape, ints, shape_of
from forge_pipeline.codegen.layout.rows import AsImages


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv3d:
    """Over a volume: the way along its depth, and over the images that it is made of."""

    depth: Depth
    geometry: Geometry

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Unfold the depth, convolve images, fold it again."""
        dynamic = convolution.dynamic
        source, weight, geometry = unfold_depth(
            graph, graph.plain(convolution.source), convolution.weight, self.depth, self.geometry,
            *(() if dynamic is None else (dynamic.zero,)), filler=convolution.zero,
        )  # fmt: skip
        flat = replace(convolution, source=source, weight=weight, strategy=Conv2d(geometry=geometry))
        images = flat.strategy.emit(graph, flat, affine)
        return stack_images(images, self.depth.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Emits a blocked batch of images as volumes of ``depth`` images each."""

    images: Value
    depth: int

    def emit(self, graph: Graph) -> Value:
        """Emit them."""
        return fold_depth(graph, graph.blocked(self.images), self.images.channels, self.depth)


def stack_images(images: Value, depth: int) -> AsImages:
    """Return a blocked batch of images as volumes of ``depth`` images each."""
    return AsImages(image=images, deferred=Folded(images=images, depth=depth))


def images_of(graph: Graph, source: Value) -> Value:
    """Return volumes as a blocked batch of images."""
    return source.image if isinstance(source, AsImages) else as_images(graph, graph.plain(source))


def over_volume(call: relax.Call, kernel: Array) -> Conv3d:
    """Return how a kernel is moved over (batch, channels, depth, height, width)."""
    attributes = call.attrs
    depth, geometry = split_depth(
        kernel,
        size=shape_of(call.args[0])[1:],
        strides=ints(attributes.strides),
        padding=ints(attributes.padding),
        dilation=ints(attributes.dilation),
        groups=int(attributes.groups),
    )
    return Conv3d(depth=depth, geometry=geometry)


def conv3d(graph: Graph, call: relax.Call) -> Value | None:
    """Take convolutions over three axes."""
    kernel = graph.look(call.args[1]).constant
    if kernel is None or call.attrs.data_layout != "NCDHW" or not has_known_shape(call.args[0], rank=5):
        return None
    return convolution_of(graph, call, over_volume(call, kernel))


HANDLERS = {"relax.nn.conv3d": conv3d}
