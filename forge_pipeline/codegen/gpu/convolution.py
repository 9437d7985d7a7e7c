"""Convolutions on a GPU as products: an image's taps are laid out as rows where a block of threads reads them.

What TVM's schedules make of a convolution is a thread for each number, which reads every weight and every tap from
memory. As a product of (filters, taps) and (taps, pixels) a block of threads has a tile of both in shared memory, and
each thread a tile of 4 x 4 results in registers. The taps are never written: a block reads them from the image
(implicit GEMM, as in cuDNN: Chetlur et al., 2014).

A network's late layers have few pixels and many taps, less than a tile for each of a GPU's processors. There the taps
are parted, and a second kernel adds up the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import GenericConst, Op
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.gpu.products import Work, known, multiplied, parts_of, tile_of


def convolutions(processors: int) -> dict[str, Any]:
    """Return how `LegalizeOps` lowers convolutions in float32 of one group, channels first; others as TVM does."""
    plain = Op.get("relax.nn.conv2d").get_attr("FLegalize")

    def lowered(builder: Any, call: relax.Call) -> relax.Expr:
        attrs, (image, weight) = call.attrs, call.args
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        is_float32 = {str(argument.ty.dtype) for argument in call.args} == {"float32"}
        is_ours = attrs.groups == 1 and layouts == ("NCHW", "OIHW", "NCHW") and is_float32
        if not is_ours or not isinstance(weight, GenericConst):
            return plain(builder, call)
        window = Window(
            kernel=[int(size) for size in list(weight.ty.shape)[2:]],
            strides=[int(step) for step in attrs.strides],
            padding=[int(size) for size in attrs.padding],
            dilation=[int(step) for step in attrs.dilation],
        )
        packed = builder.emit(relax.op.permute_dims(weight, [2, 3, 1, 0]))  # computed when this is compiled
        return builder.call_te(
            partial(_product, window=window, processors=processors),
            image,
            packed,
            primfunc_name_hint="conv2d",
            primfunc_attrs={"op_pattern": 4},  # element-wise operators behind it are fused
        )

    return {"relax.nn.conv2d": lowered}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a pixel is made of: sizes along rows and columns; padding is above, left, below and right."""

    kernel: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    def outputs(self, sizes: Sequence[Any]) -> list[Any]:
        """Return how many rows and columns come out."""
        analyzer = Analyzer()
        reached = [(taps - 1) * step + 1 for taps, step in zip(self.kernel, self.dilation, strict=True)]
        spare = [sum(self.padding[axis::2]) - reached[axis] for axis in (0, 1)]
        return [
            analyzer.simplify((size + more) // step + 1)
            for size, more, step in zip(sizes, spare, self.strides, strict=True)
        ]

    def places(self, pixel: Sequence[Any], tap: Sequence[Any]) -> list[Any]:
        """Return the row and the column of an image that a tap of a pixel reads, maybe beyond its edges."""
        return [
            pixel[axis] * self.strides[axis] + tap[axis] * self.dilation[axis] - self.padding[axis] for axis in (0, 1)
        ]


def _product(image: te.Tensor, packed: te.Tensor, *, window: Window, processors: int) -> te.Tensor:
    """Describe (batch, channels, rows, columns) convolved by (kernel rows, kernel columns, channels, filters).

    Taps are numbered channels last: the few that a block has at a time mostly are of one place. Beyond an edge the
    nearest number is read, and its bits are cleared: without a branch, many reads are on their way at a time.
    """
    batch, channels, *sizes = image.shape
    filters = int(packed.shape[3])
    out = window.outputs(sizes)
    taps, pixels = channels * window.kernel[0] * window.kernel[1], out[0] * out[1]
    work = Work(batch=known(batch), rows=filters, columns=known(pixels), terms=int(taps))
    tile = tile_of(work, processors)

    def tap(number: Any) -> tuple[Any, Any, Any]:
        place, channel = number // channels, number % channels
        return place // window.kernel[1], place % window.kernel[1], channel

    def of_image(item: Any, number: Any, pixel: Any) -> Any:
        *within, channel = tap(number)
        pixel = tirx.min(pixel, pixels - 1)
        at = window.places((pixel // out[1], pixel % out[1]), within)
        if not any(window.padding):
            return image(item, channel, *at)
        nearest = [tirx.max(tirx.min(place, size - 1), 0) for place, size in zip(at, sizes, strict=True)]
        inside = tirx.all(*(tirx.all(place >= 0, place < size) for place, size in zip(at, sizes, strict=True)))
        mask = tirx.const(0, "int32") - inside.astype("int32")
        return tirx.reinterpret("float32", tirx.reinterpret("int32", image(item, channel, *nearest)) & mask)

    def of_weights(_: Any, number: Any, filter_: Any) -> Any:
        return packed(*tap(number), tirx.min(filter_, filters - 1))

    return multiplied(
        of_weights, of_image, (batch, int(taps), filters, pixels), tile, parts_of(work, tile, processors),
        (batch, filters, *out), lambda item, filter_, row, column: (item, filter_, row * out[1] + column),
    )  # fmt: skip
