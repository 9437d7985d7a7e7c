"""The kernel of what is read between pixels: which ones, and how much each counts, is found once for many channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import attributes, called, extents_of, own, size, unravelled
from forge_pipeline.codegen.tir import script

TILE: Final = 128
"""Results of a channel that are computed together: their tables stay in the first cache."""
PLACE: Final = "int32"
REACH: Final = 4
"""How far outside of an image no pixel of it is read."""

COUNTS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
"""How many pixels of an axis are read."""
KEYS: Final = -0.75
"""The coefficient of cubic convolution (Keys, 1981)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What ``result[n, c, kind, pixel]`` is of an image (N, C, ...): pixels around a place, weighted by ``mode``.

    ``place(extents, tensors, n, group, kind, pixel)`` has the place in pixels along each axis, for one of ``groups`` of
    channels side by side, and ``scale(tensors, ...)`` what all is multiplied with. ``within(pixel, extent)`` returns a
    pixel that the image has; if it is None, others count 0.
    """

    place: Callable[..., Sequence[Any]]
    mode: str
    scale: Callable[..., Any] | None = None
    groups: int = 1
    within: Callable[[Any, Any], Any] | None = None

    def emit(self, builder: Any, image: relax.Expr, tensors: Sequence[relax.Expr], result: Sequence[Any]) -> relax.Expr:
        """Emit the kernel of ``result`` (N, C, kinds, pixels); one tensor or two say where to read."""
        operands = [image, *tensors]
        kernel = self._kernel(own(*map(extents_of, operands), result), [str(tensor.ty.dtype) for tensor in operands])
        return called(builder, kernel, operands, [(result, str(image.ty.dtype))])[0]

    def _kernel(self, shapes: Sequence[tuple[Any, ...]], dtypes: Sequence[str]) -> tirx.PrimFunc:
        (image, *tables, result), dtype, real = shapes, dtypes[0], dtypes[1]
        batch, channels, kinds, pixels = result
        extents, depth = image[2:], channels // self.groups
        space, count = len(extents), COUNTS[self.mode]
        reads = count**space
        bits = f"int{''.join(filter(str.isdigit, dtype))}"
        tiles = (pixels + (TILE - 1)) // TILE
        turns = (batch, tirx.const(self.groups, "int64"), kinds, tiles)
        within = self.within or clamped

        def around(FIRST: Any, tap: Any, i: Any) -> list[tuple[Any, Any]]:
            """Return the ``tap``-th pixel of all along each axis, and the axis' extent."""
            return [
                (
                    FIRST[axis, i] + tirx.Cast(PLACE, tap // count ** (space - 1 - axis) % count),
                    tirx.Cast(PLACE, extent),
                )
                for axis, extent in enumerate(extents)
            ]

        def flat(FIRST: Any, tap: Any, i: Any) -> Any:
            pairs = [(within(pixel, extent), extent) for pixel, extent in around(FIRST, tap, i)]
            return reduce(lambda total, pair: total * pair[1] + pair[0], pairs, tirx.const(0, PLACE))

        def mask(FIRST: Any, tap: Any, i: Any) -> Any:
            inside = [tirx.all(pixel >= 0, pixel < extent) for pixel, extent in around(FIRST, tap, i)]
            return tirx.Select(tirx.all(*inside), tirx.const(-1, bits), tirx.const(0, bits))

        def weight(PARTS: Any, tap: Any, i: Any) -> Any:
            parts = [PARTS[axis, tap // count ** (space - 1 - axis) % count, i] for axis in range(space)]
            return reduce(lambda left, right: left * right, parts)

        def first(place: Any, axis: Any) -> Any:
            """Return the first pixel; of what lies further outside than pixels reach, one that lies outside too."""
            most = one_of([extent.astype(real) for extent in extents], axis) + tirx.const(REACH, real)
            low = tirx.max(tirx.min(tirx.floor(place), most), tirx.const(-REACH, real))
            return tirx.Cast(PLACE, low) - (1 if self.mode == "cubic" else 0)

        def read(X: Any, n: Any, c: Any, PLACES: Any, MASKS: Any, WEIGHTS: Any, i: Any) -> Any:
            values = []
            for tap in range(reads):
                value = X[(n, c, *unravelled(tirx.Cast("int64", PLACES[tap, i]), extents))]
                if self.within is None:
                    value = tirx.reinterpret(dtype, tirx.reinterpret(bits, value) & MASKS[tap, i])
                values.append(value if reads == 1 else value * WEIGHTS[tap, i])
            return reduce(lambda left, right: left + right, values)

        @script.inline
        def tile(X, tensors, Y, n, group, kind, begin, many):  # type: ignore[no-untyped-def]
            AT = T.sblock_alloc_buffer((space, TILE), real, scope="local")
            FIRST = T.sblock_alloc_buffer((space, TILE), PLACE, scope="local")
            PARTS = T.sblock_alloc_buffer((space, count, TILE), dtype, scope="local")
            PLACES = T.sblock_alloc_buffer((reads, TILE), PLACE, scope="local")
            MASKS = T.sblock_alloc_buffer((reads, TILE), bits, scope="local")
            WEIGHTS = T.sblock_alloc_buffer((reads, TILE), dtype, scope="local")
            for axis in T.unroll(space):
                for i in T.serial(many):
                    AT[axis, i] = one_of(self.place(extents, tensors, n, group, kind, begin + i), axis)
                for i in T.serial(many):
                    FIRST[axis, i] = first(AT[axis, i], axis)
                for k in T.unroll(count):
                    for i in T.serial(many):
                        PARTS[axis, k, i] = one_of(_shares(AT[axis, i] - T.floor(AT[axis, i]), self.mode), k).astype(
                            dtype
                        )
            if self.scale is not None:
                for k in T.unroll(count):
                    for i in T.serial(many):
                        PARTS[0, k, i] = PARTS[0, k, i] * self.scale(tensors, n, group, kind, begin + i)
            for tap in T.serial(reads):
                for i in T.serial(many):
                    PLACES[tap, i] = flat(FIRST, tap, i)
                    MASKS[tap, i] = mask(FIRST, tap, i)
                    WEIGHTS[tap, i] = weight(PARTS, tap, i)
            for c in T.serial(depth):
                for i in T.serial(many):
                    Y[n, group * depth + c, kind, begin + i] = read(X, n, group * depth + c, PLACES, MASKS, WEIGHTS, i)

        def part(t: Any) -> tuple[Any, ...]:
            n, group, kind, number = unravelled(t, turns)
            return n, group, kind, number * TILE, tirx.min(TILE, pixels - number * TILE)

        if len(tables) == 1:

            @script.prim_func(s_tir=True, private=True)
            def one(a: T.handle, b: T.handle, y: T.handle):  # type: ignore[no-untyped-def]
                T.func_attr(attributes("taps"))
                X = T.match_buffer(a, image, dtype)
                B = T.match_buffer(b, tables[0], dtypes[1])
                Y = T.match_buffer(y, result, dtype)
                for turn in T.parallel(size(turns)):
                    with T.sblock("tile"):
                        t = T.axis.opaque(size(turns), turn)
                        T.reads()
                        T.writes()
                        tile(X, (B,), Y, *part(t))

            return one

        @script.prim_func(s_tir=True, private=True)
        def two(a: T.handle, b: T.handle, c: T.handle, y: T.handle):  # type: ignore[no-untyped-def]
            T.func_attr(attributes("taps"))
            X = T.match_buffer(a, image, dtype)
            B = T.match_buffer(b, tables[0], dtypes[1])
            C = T.match_buffer(c, tables[1], dtypes[2])
            Y = T.match_buffer(y, result, dtype)
            for turn in T.parallel(size(turns)):
                with T.sblock("tile"):
                    t = T.axis.opaque(size(turns), turn)
                    T.reads()
                    T.writes()
                    tile(X, (B, C), Y, *part(t))

        return two


def clamped(pixel: Any, extent: Any) -> Any:
    """Return the pixel of the image that is nearest."""
    return tirx.max(tirx.min(pixel, extent - 1), 0)


def one_of(choices: Sequence[Any], which: Any) -> Any:
    """Return the ``which``-th of some expressions."""
    *others, last = choices
    return reduce(
        lambda rest, item: tirx.Select(which.equal(item[0]), item[1], rest), reversed(list(enumerate(others))), last
    )


def _shares(part: Any, mode: str) -> list[Any]:
    """Return how much each pixel of an axis counts, for a place that lies ``part`` of a pixel behind one of them."""
    one = tirx.const(1, _type(part))
    if mode == "nearest":
        return [one]
    if mode == "linear":
        return [one - part, part]
    return [_far(part + one), _near(part), _near(one - part), _far(one - part + one)]


def _type(value: Any) -> str:
    """Return the element type of an expression."""
    return str(value.ty)


def _near(x: Any) -> Any:
    a, b, one = (tirx.const(number, _type(x)) for number in (KEYS + 2, KEYS + 3, 1))
    return (a * x - b) * x * x + one


def _far(x: Any) -> Any:
    a, b, c, d = (tirx.const(number, _type(x)) for number in (KEYS, 5 * KEYS, 8 * KEYS, 4 * KEYS))
    return ((a * x - b) * x + c) * x - d
