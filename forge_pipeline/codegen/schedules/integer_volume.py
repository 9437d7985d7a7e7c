"""Convolution of bytes over three axes: a batch of images, as ``volume`` has it, with the zero point around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge_pipeline.codegen.graph import Graph, Value, has_known_shape, ints, shape_of
from forge_pipeline.codegen.integer import Affine
from forge_pipeline.codegen.schedules.geometry import Geometry
from forge_pipeline.codegen.schedules.integer_forms import Convolution, Plane, convolution_of
from forge_pipeline.codegen.schedules.volume import Depth, folded, taken_apart, unfolded

if TYPE_CHECKING:
    from tvm import relax


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Over a volume: the way along its depth, and over the images that it is made of."""

    depth: Depth
    geometry: Geometry

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Unfold the depth, convolve images, fold it again."""
        measured = convolution.measured
        source, weight, geometry = unfolded(
            graph, graph.plain(convolution.source), convolution.weight, self.depth, self.geometry,
            *(() if measured is None else (measured.zero,)), filler=convolution.zero,
        )  # fmt: skip
        flat = replace(convolution, source=source, weight=weight, walk=Plane(geometry=geometry))
        images = flat.walk.emit(graph, flat, affine)
        return folded(graph, images.blocked, convolution.filters, self.depth)


def conv3d(graph: Graph, call: relax.Call) -> Value | None:
    """Take convolutions over three axes."""
    kernel, attributes = graph.look(call.args[1]).constant, call.attrs
    if kernel is None or attributes.data_layout != "NCDHW" or not has_known_shape(call.args[0], rank=5):
        return None
    depth, geometry = taken_apart(
        kernel,
        size=shape_of(call.args[0])[1:],
        strides=ints(attributes.strides),
        padding=ints(attributes.padding),
        dilation=ints(attributes.dilation),
        groups=int(attributes.groups),
    )
    return convolution_of(graph, call, Stack(depth=depth, geometry=geometry))


HANDLERS = {"relax.nn.conv3d": conv3d}
