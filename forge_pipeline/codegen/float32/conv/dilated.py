"""Dilated 3x3 convolutions as several that are not dilated, so that Winograd's transforms serve them.

Results that are a dilation apart read pixels that are a dilation apart: each of the dh x dw phases of an image is an
image of its own, and convolved as such (the polyphase form of the algorithme a trous: Shensa, IEEE Trans. Signal
Processing 40(10), 1992). One kernel parts the phases, with the padding around them, and one puts them together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx

from forge_pipeline.codegen.float32.conv import dynamic_shape, plan
from forge_pipeline.codegen.float32.conv.geometry import Geometry, simplify
from forge_pipeline.codegen.float32.conv.winograd import fixed_size as winograd
from forge_pipeline.codegen.float32.conv.winograd.tiles import LARGE, SMALL
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.tir.machine import Machine


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr | None:
    """Emit the convolution if it is dilated and this is expected to take fewer cycles; the result is blocked."""
    if graph.channels_last or not graph.rearranges or not pays(graph.machine, geometry):
        return None
    if winograd.choose(graph.machine, phase_of(geometry), weight) is None:
        return None
    image = graph.named(graph.blocked(source))
    apart = graph.named(graph.kernel(part, image, name="phases_apart", geometry=geometry))
    inner = replace(phase_of(geometry), size=tuple(shape_of(apart)[2:4]))
    found = winograd.emit(graph, Value(blocked=apart, channels=geometry.channels), weight, inner)
    if found is None:
        return None
    height, width = geometry.dilation
    named = graph.named(found)
    phases = graph.emit(relax.op.reshape(named, (shape_of(image)[0], height * width, *shape_of(named)[1:])))
    return graph.kernel(join, phases, image, name="phases_together", geometry=geometry)


def phase_of(geometry: Geometry) -> Geometry:
    """Return the geometry of one phase, of as many pixels as the largest has with its padding."""
    top, left, bottom, right = geometry.padding
    full = (geometry.size[0] + (top + bottom), geometry.size[1] + (left + right))
    size = tuple((extent + (step - 1)) // step for extent, step in zip(full, geometry.dilation, strict=True))
    size = size if geometry.is_static else tuple(map(simplify, size))
    return replace(geometry, size=size, padding=(0, 0, 0, 0), dilation=(1, 1))


def pays(machine: Machine, geometry: Geometry) -> bool:
    """Return whether phases and copies take fewer cycles than `direct`, for the sizes that open ones stand for."""
    is_possible = geometry.kernel == (3, 3) and set(geometry.strides) == {1} and geometry.groups == 1
    if not is_possible or set(geometry.dilation) == {1} or min(geometry.channels, geometry.filters) < machine.lanes:
        return False
    shares = [_cycles(machine, size) / plan.cycles(machine, size) for size in dynamic_shape.typical(geometry)]
    return sum(shares) < len(shares)


def _cycles(machine: Machine, geometry: Geometry) -> float:
    phase, (height, width) = phase_of(geometry), geometry.dilation
    if min(phase.output) < 1:
        return float("inf")
    copied = machine.item * height * width * (
        geometry.channels * phase.size[0] * phase.size[1] + geometry.filters * phase.output[0] * phase.output[1]
    )  # fmt: skip
    products = min(winograd.cycles(machine, phase, transform) for transform in (SMALL, LARGE))
    return height * width * products + 2 * machine.streaming_cycles(copied)


def part(image: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the phases of a blocked image one after the other, with zeros around it."""
    geometry = geometry.of(image)
    top, left, _, _ = geometry.padding
    (rows, columns), (height, width) = geometry.dilation, geometry.size
    batch, blocks, _, _, lanes = image.shape

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        y = h * rows + n // columns % rows - top
        x = w * columns + n % columns - left
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, image[n // (rows * columns), block, y, x, lane], tirx.const(0, image.dtype))

    return te.compute((batch * (rows * columns), blocks, *phase_of(geometry).size, lanes), element, name="phases_apart")


def join(phases: te.Tensor, image: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the image whose phases are (batch, phases, blocks, height, width, lanes).

    ``image`` is what was convolved: its size, which the phases do not tell, makes that of the result.
    """
    geometry = geometry.of(image)
    rows, columns = geometry.dilation
    batch, _, blocks, _, _, lanes = phases.shape

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        found = phases(n, h % rows * columns + w % columns, block, h // rows, w // columns, lane)
        return tirx.Select(h < geometry.output[0], found, tirx.const(0, phases.dtype))  # else TVM fails at a copy

    return te.compute((batch, blocks, *geometry.output, lanes), element, name="phases_together")
