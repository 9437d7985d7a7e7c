"""What tiles read: an image or a matrix copied so that each row of a tile is a line of the cache, 64 bytes.

A line holds, for one pixel of a row of results, what it reads of a row of the image: its taps side by side, all
channels of each. What a row of taps further down reads is the line of so many rows of results further on (`Taps`), so
an image is copied once for the width of a kernel, not once for each tap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.amx.operands import Operands, filled, round_up
from forge_pipeline.codegen.amx.rows import LINES, Rows, group_of, groups_of
from forge_pipeline.codegen.amx.tiles import BYTES, ROWS, WORDS
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir import bfloat16_pairs, primitives

PIECE: Final = "forge.amx_piece"
"""The annotation of the copy: how many numbers, one after the other, are one after the other where they come from."""

LINE_CYCLES: Final = 15
"""Cycles that a line of an image of few channels takes to be copied: 4 in one piece, 19 in four (measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Part number p of a kernel's rows reads lines p * ``apart`` rows of the image further down than the first.

    Results are ``stride`` rows apart, ``width`` to a row; lines of each row of a stride are together, a phase. Of an
    image of any size, so many pixels are a ``group``.
    """

    apart: int
    stride: int
    width: Any
    group: int = 0

    def phases(self, parts: int) -> int:
        """Return how many rows of a stride so many parts read, or their number where that is a part of it."""
        return self.stride if parts > 1 and self.apart % self.stride else 1

    def lines(self, parts: int, pixels: Any) -> Any:
        """Return how many lines of a phase are read for so many pixels, in whole rows where the width is a number."""
        last = pixels + (parts - 1) * self.apart // self.stride * self.width
        return last if self.group else -(-last // self.width) * self.width


MATRIX: Final = Taps(apart=1, stride=1, width=0)
"""Of products that have one part."""


def taps_of_image(geometry: Geometry, size: int) -> Taps:
    """Return how parts, each a row of a kernel, read lines of an image in blocks, ``size`` bytes for each pixel."""
    group = 0 if geometry.is_static else group_of(size)
    return Taps(apart=geometry.dilation[0], stride=geometry.strides[0], width=geometry.output[1], group=group)


def lines_of_image(image: te.Tensor, of: Operands, geometry: Geometry, zero: int) -> tuple[te.Tensor, Taps]:
    """Describe the copy of an image in blocks: (image, phase, chunk, pixel, numbers of a line).

    And return how parts read it.
    """
    batch, blocks, _, _, lanes = image.shape
    channels, lanes = int(blocks) * int(lanes), int(lanes)
    (kernel_h, kernel_w), (stride_h, stride_w) = geometry.kernel, geometry.strides
    dilation_w, (top, left, *_), (height, width) = geometry.dilation[1], geometry.padding, geometry.size
    chunks = -(-kernel_w * channels // of.items)
    taps = taps_of_image(geometry, chunks * BYTES)
    phases, results = taps.phases(kernel_h), geometry.output[0] * geometry.output[1]
    is_open = not geometry.is_static
    is_plain = not is_open and (kernel_h, kernel_w, stride_h, stride_w) == (1, 1, 1, 1) and not any(geometry.padding)
    pixels = taps.lines(kernel_h, groups_of(results, taps.group) * taps.group if is_open else filled(results))

    def element(n: Any, phase: Any, chunk: Any, pixel: Any, step: Any) -> Any:
        at = chunk * of.items + step
        tap, channel = at // channels, at % channels
        y = pixel // taps.width * stride_h + phase - top
        x = pixel % taps.width * stride_w + tap * dilation_w - left
        inside = []
        if is_plain:  # a test that takes no division
            inside += [pixel < results] if pixels > results else []
        elif is_open or top or (pixels // taps.width - 1) * stride_h + phases > height:
            inside += [y >= 0, y < height]
        if kernel_w * channels % of.items:
            inside += [tap < kernel_w]
        if is_open or left or (taps.width - 1) * stride_w + (kernel_w - 1) * dilation_w >= width:
            inside += [x >= 0, x < width]
        return _inside(inside, image(n, channel // lanes, y, x, channel % lanes), zero, image.dtype)

    shape = (batch, phases, chunks, pixels, of.items)
    return te.compute(shape, element, name=LINES, attrs={PIECE: lanes}), taps


def taps_in_rows(weight: Array, lanes: int) -> Array:
    """Return (filters, channels, height, width) as (height, width times channels of whole blocks, filters)."""
    filters, channels, height, width = weight.shape
    full = np.zeros((height, width, round_up(channels, lanes), filters), weight.dtype)
    full[:, :, :channels] = weight.transpose(2, 3, 1, 0)
    return full.reshape(height, -1, filters)


def lines_of_matrix(matrix: te.Tensor, of: Operands) -> te.Tensor:
    """Describe the copy of (.., rows, steps): (1, 1, chunk, row of all, numbers of a line); floats are rounded.

    Of as many rows as a call brings there are groups (`Rows`): (group, 1, chunk, row of it, numbers of a line).
    """
    *leading, steps = matrix.shape
    rows, size = Rows.of(leading), int(steps)
    group = rows.group(-(-size // of.items) * BYTES)

    def element(g: Any, _phase: Any, chunk: Any, row: Any, step: Any) -> Any:
        at = chunk * of.items + step
        row = g * group + row if rows.is_open else row
        inside = [row < rows.count] if rows.is_open or group > rows.count else []
        inside += [at < size] if size % of.items else []
        value = matrix(*rows.place(row), at)
        return _inside(inside, bfloat16_pairs.rounded(value) if matrix.dtype == "float32" else value, 0, of.left)

    shape = (rows.groups(group), 1, -(-size // of.items), group, of.items)
    return te.compute(shape, element, name=LINES, attrs={PIECE: WORDS})


def _inside(conditions: list[Any], value: Any, zero: int, dtype: str) -> Any:
    return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(zero, dtype)) if conditions else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """How an image of few channels is read: as ``count`` planes of words of ``at_once`` channels.

    A line holds, one behind the other, ``segment`` neighbouring words of each plane, of ``rows`` rows of the image.
    """

    geometry: Geometry
    at_once: int

    @classmethod
    def of(cls, geometry: Geometry, at_once: int) -> Planes | None:
        """Return it; None where a line has no room for a row of a kernel."""
        planes = cls(geometry=geometry, at_once=at_once)
        fits = planes.count * planes.segment <= WORDS
        return planes if fits and geometry.dilation == (1, 1) and geometry.groups == 1 else None

    @property
    def count(self) -> int:
        """Planes of an image."""
        return -(-self.geometry.channels // self.at_once)

    @property
    def segment(self) -> int:
        """Words of a plane in a line, a power of two."""
        return 1 << (self.geometry.kernel[1] - 1).bit_length()

    @property
    def rows(self) -> int:
        """Rows of the image in a line."""
        return min(WORDS // (self.count * self.segment), self.geometry.kernel[0])

    @property
    def parts(self) -> int:
        """Lines that hold all rows of a kernel."""
        return -(-self.geometry.kernel[0] // self.rows)

    def pays(self, of: Operands) -> bool:
        """Return whether tiles take fewer cycles for a pixel than vectors, which read the image as it lies.

        A line is copied, whatever is in it, once for all parts that read it, and sums pass through memory.
        """
        filters, steps, copied = self.geometry.filters, self.geometry.steps, self.taps.phases(self.parts)
        return LINE_CYCLES * copied + filters / 8 + filters * self.parts / 16 < filters * steps / of.by_vectors

    @property
    def taps(self) -> Taps:
        """How parts read lines."""
        return Taps(apart=self.rows, stride=self.geometry.strides[0], width=self.geometry.output[1])

    @property
    def padded(self) -> Geometry:
        """The geometry with as much around the image as lines reach."""
        (top, left, *_), (height, width) = self.geometry.padding, self.geometry.size
        stride_h, stride_w = self.geometry.strides
        last = self._pixels // self.taps.width - 1
        bottom = last * stride_h + self.taps.phases(self.parts) + self.rows - 1 - top - height
        right = (self.taps.width - 1) * stride_w + self.segment - left - width
        return replace(self.geometry, padding=(top, left, max(bottom, 0), max(right, 0)))

    @property
    def _pixels(self) -> int:
        pixels: int = self.taps.lines(self.parts, filled(math.prod(self.geometry.output)))
        return pixels

    def pack(self, weight: Array) -> Array:
        """Return (filters, channels, height, width) as (parts, steps of a line, filters)."""
        filters, channels, height, width = weight.shape
        shape = (self.parts * self.rows, self.count * self.at_once, self.segment, filters)
        full = np.zeros(shape, weight.dtype)
        full[:height, :channels, :width] = weight.transpose(2, 1, 3, 0)
        split = full.reshape(self.parts, self.rows, self.count, self.at_once, self.segment, filters)
        packed: Array = split.transpose(0, 1, 2, 4, 3, 5).reshape(self.parts, -1, filters)
        return packed

    def lines(self, planes: te.Tensor) -> te.Tensor:
        """Describe the copy of padded planes of words: (image, phase, 1, pixel, words of a line)."""
        stride_h, stride_w = self.geometry.strides

        def element(n: Any, phase: Any, _: Any, pixel: Any, word: Any) -> Any:
            at, tap = word // self.segment, word % self.segment
            row, plane = at // self.count, at % self.count
            y = pixel // self.taps.width * stride_h + phase + row
            inside = [at < self.rows * self.count] if self.rows * self.count * self.segment < WORDS else []
            return _inside(inside, planes(n, plane, y, pixel % self.taps.width * stride_w + tap), 0, planes.dtype)

        shape = (planes.shape[0], self.taps.phases(self.parts), 1, self._pixels, WORDS)
        return te.compute(shape, element, name=LINES, attrs={PIECE: self.segment})


def copy_lines(sch: Schedule, lines: SBlockRV, shared: LoopRV | None, width: int) -> None:
    """Copy rows to lines: of all rows first, or of a block of them when it is ``shared`` out."""
    if shared is not None:
        sch.compute_at(lines, shared, preserve_unit_loops=True)
    *outer, chunk, row, step = sch.get_loops(lines)
    size = primitives.extent(sch, row)
    each = width or (ROWS if size is None or size % ROWS == 0 else size)
    row_block, row = sch.split(row, [None, each])
    piece, lane = sch.split(step, [None, int(sch.get(lines).annotations[PIECE])])
    is_cut = size is None or (shared is not None and not width)  # to tell pixels of any row apart takes divisions
    inner = [row, chunk] if is_cut else [chunk, row]
    sch.reorder(row_block, *inner, piece, lane)
    sch.vectorize(lane)
    if shared is None:
        work = primitives.product(primitives.extents(sch, lines))
        primitives.parallel_if_worth(sch, primitives.fuse(sch, [*outer, row_block]), work)
