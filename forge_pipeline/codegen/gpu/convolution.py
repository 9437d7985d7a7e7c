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
from typing import Any, Final

from tvm import relax, te, tirx
from tvm.ir import GenericConst, Op

from forge_pipeline.codegen.gpu.products import PRODUCT, SUMMED, TAPS, THREAD

FEW_PROCESSORS: Final = {"sm_53": 1, "sm_62": 2, "sm_72": 8, "sm_87": 16}
"""Jetson Nano, TX2, Xavier and Orin; elsewhere ``MANY``."""
MANY: Final = 96
TILES: Final = ((64, 64), (32, 64), (32, 32), (16, 32))
"""Filters and pixels of a block of threads, largest first."""
BUSY: Final = 384
"""Threads of a processor that hide what reads take."""
PARTS: Final = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)


def convolutions(arch: str) -> dict[str, Any]:
    """Return how `LegalizeOps` lowers convolutions in float32 of one group, channels first; others as TVM does.

    ``arch`` tells how many processors the GPU has.
    """
    processors = FEW_PROCESSORS.get(arch, MANY)
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
        return [
            (size + self.padding[axis] + self.padding[axis + 2] - (self.kernel[axis] - 1) * self.dilation[axis] - 1)
            // self.strides[axis]
            + 1
            for axis, size in enumerate(sizes)
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
    tile = _tile(batch, filters, pixels, processors)
    parts = _parts(batch, filters, pixels, taps, processors)
    own = taps // parts
    whole_tiles = [(size + (width - 1)) // width * width for size, width in zip((filters, pixels), tile, strict=True)]

    def tap(part: Any, number: Any) -> tuple[Any, Any, Any]:
        place, channel = (part * own + number) // channels, (part * own + number) % channels
        return place // window.kernel[1], place % window.kernel[1], channel

    def of_image(part: Any, item: Any, number: Any, pixel: Any) -> Any:
        *within, channel = tap(part, number)
        pixel = tirx.min(pixel, pixels - 1)
        at = window.places((pixel // out[1], pixel % out[1]), within)
        if not any(window.padding):
            return image(item, channel, *at)
        nearest = [tirx.max(tirx.min(place, size - 1), 0) for place, size in zip(at, sizes, strict=True)]
        inside = tirx.all(*(tirx.all(place >= 0, place < size) for place, size in zip(at, sizes, strict=True)))
        mask = tirx.const(0, "int32") - inside.astype("int32")
        return tirx.reinterpret("float32", tirx.reinterpret("int32", image(item, channel, *nearest)) & mask)

    def of_weights(part: Any, number: Any, filter_: Any) -> Any:
        return packed(*tap(part, number), tirx.min(filter_, filters - 1))

    read = te.compute((parts, batch, own, whole_tiles[1]), of_image, name="taps")
    weights = te.compute((parts, own, whole_tiles[0]), of_weights, name="weights")
    step = te.reduce_axis((0, own), name="tap")

    def product(part: Any, item: Any, filter_: Any, pixel: Any) -> Any:
        return te.sum(weights(part, step, filter_) * read(part, item, step, pixel), axis=step)

    products = te.compute((parts, batch, *whole_tiles), product, name="product", attrs={PRODUCT: list(tile)})
    whole = (batch, filters, *out)
    if parts == 1:
        return te.compute(
            whole,
            lambda item, filter_, row, column: products(0, item, filter_, row * out[1] + column),
            name="image",
        )
    part = te.reduce_axis((0, parts), name="part")
    return te.compute(
        whole,
        lambda item, filter_, row, column: te.sum(products(part, item, filter_, row * out[1] + column), axis=part),
        name=SUMMED,
    )


def _parts(batch: Any, filters: int, pixels: Any, taps: Any, processors: int) -> int:
    """Return in how many parts the taps are added up, so that there are warps to hide what reads take."""
    known = [size for size in (batch, pixels, taps) if isinstance(size, int | tirx.IntImm)]
    if len(known) < 3:
        return 1
    batch, pixels, taps = (int(size) for size in known)
    tile = _tile(batch, filters, pixels, processors)
    threads = batch * _blocks(filters, pixels, tile) * tile[0] * tile[1] // THREAD**2
    fitting = [parts for parts in PARTS if taps % (parts * TAPS) == 0 and taps // parts >= 8 * TAPS]
    return next((parts for parts in fitting if threads * parts >= BUSY * processors), fitting[-1] if fitting else 1)


def _tile(batch: Any, filters: Any, pixels: Any, processors: int) -> tuple[int, int]:
    """Return the largest tile of which there are two for each processor, else the one before the smallest."""
    if not all(isinstance(size, int | tirx.IntImm) for size in (batch, filters, pixels)):
        return TILES[0]
    for tile in TILES[:-1]:
        if int(batch) * _blocks(int(filters), int(pixels), tile) >= 2 * processors:
            return tile
    return TILES[-1] if int(filters) <= TILES[-1][0] else TILES[-2]


def _blocks(filters: int, pixels: int, tile: tuple[int, int]) -> int:
    return -(-filters // tile[0]) * -(-pixels // tile[1])
