"""The shape of a two-dimensional convolution, and the image with zeros around it that most algorithms read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, te, tirx
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.layout.builder import ints, shape_of
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.peel_padding import EDGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What a convolution's weights and image do not say by themselves.

    Pairs are (height, width); ``padding`` is (top, left, bottom, right), in pixels. ``size`` may be symbolic.
    """

    channels: int
    filters: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, int]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """Whether height and width are numbers."""
        return all(isinstance(extent, int) for extent in self.size)

    def of(self, image: te.Tensor) -> Geometry:
        """Return the geometry inside a kernel, whose symbolic extents are those of its ``image``."""
        return self if self.is_static else replace(self, size=tuple(image.shape[2:4]))

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the result."""
        top, left, bottom, right = self.padding
        edges = (top + bottom, left + right)
        height, width = (
            (size + (edge - dilation * (kernel - 1) - 1)) // stride + 1
            for size, edge, dilation, kernel, stride in zip(
                self.size, edges, self.dilation, self.kernel, self.strides, strict=True
            )
        )
        return (height, width) if self.is_static else (simplify(height), simplify(width))

    def input_width(self, out_w: int) -> int:
        """Return how many pixels of a padded row ``out_w`` results read."""
        return (out_w - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilation[1] + 1

    def padded_for(self, out_w: int) -> Geometry:
        """Return the geometry with as much padding to the right as ``out_w`` results need."""
        top, left, bottom, right = self.padding
        return replace(self, padding=(top, left, bottom, max(right, self.input_width(out_w) - left - self.size[1])))

    @property
    def steps(self) -> int:
        """Multiply-adds for one result."""
        return self.channels // self.groups * self.kernel[0] * self.kernel[1]


def conv2d_geometry(call: relax.Call, weight: Sequence[int]) -> Geometry:
    """Return that of an operator on (batch, channels, height, width), with weights of shape ``weight``."""
    filters, _, height, width = weight
    _, channels, *size = shape_of(call.args[0])
    attributes = call.attrs
    return Geometry(
        channels=channels,
        filters=filters,
        groups=int(attributes.groups),
        size=tuple(size),
        kernel=(height, width),
        strides=ints(attributes.strides),
        padding=ints(attributes.padding),
        dilation=ints(attributes.dilation),
    )


def conv1d_geometry(call: relax.Call, weight: Sequence[int]) -> Geometry:
    """Return that of an operator on (batch, channels, width), whose rows are images of one row."""
    filters, _, width = weight
    _, channels, size = shape_of(call.args[0])
    attributes = call.attrs
    left, right = ints(attributes.padding)
    return Geometry(
        channels=channels,
        filters=filters,
        groups=int(attributes.groups),
        size=(1, size),
        kernel=(1, width),
        strides=(1, *ints(attributes.strides)),
        padding=(0, left, 0, right),
        dilation=(1, *ints(attributes.dilation)),
    )


def simplify(extent: Any) -> Any:
    """Return an extent in TVM's own normal form, in which it compares as equal to what shape inference found."""
    return extent if isinstance(extent, int) else Analyzer().simplify(extent)


def pad_image(
    image: te.Tensor, geometry: Geometry, filler: int = 0, *, by_rows: bool = False, peel: bool = False
) -> te.Tensor:
    """Return ``image`` (axes 2 and 3 are height and width, in either layout) with the padding's zeros around it.

    ``filler`` stands for zero where the image is quantized. ``by_rows``: the copy has a loop along the rows, from which
    TVM's loop partitioning takes the edges, so that there are no tests between them; ``peel``: `peel_padding` does.
    """
    top, left, bottom, right = geometry.padding
    if not any(geometry.padding):
        return image
    height, width = geometry.size
    batch, channels, _, _, *lanes = image.shape

    def element(n: Any, c: Any, h: Any, w: Any, *lane: Any) -> Any:
        conditions = []
        if top:
            conditions.append(h >= top)
        if bottom:
            conditions.append(h < height + top)
        mark = tirx.likely if by_rows else lambda condition: condition
        if left:
            conditions.append(mark(w >= left))
        if right:
            conditions.append(mark(w < width + left))
        inside = tirx.all(*conditions) if len(conditions) > 1 else conditions[0]
        return tirx.if_then_else(inside, image(n, c, h - top, w - left, *lane), tirx.const(filler, image.dtype))

    shape = (batch, channels, height + (top + bottom), width + (left + right), *lanes)
    attributes: dict[str, Any] = {primitives.FAMILY: primitives.PAD}
    if peel or not geometry.is_static:
        attributes[EDGES] = 3
    return te.compute(shape, element, name=primitives.PAD, attrs=attributes)
