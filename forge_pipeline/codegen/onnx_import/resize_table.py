"""Resize as ONNX Runtime computes it: for each axis, which pixels a result reads and with which weights.

TVM's own is wrong for smaller sizes and lacks antialiasing. Where extents are numbers, every way of resizing is a
table, made here: coordinates in float32, as ONNX Runtime has them, since a nearest pixel hangs on their last bit. The
equations are those of the ONNX operator reference, Resize-19; where ONNX Runtime reads them otherwise (a scaled extent
that is no whole number; an axis that keeps its size keeps its pixels) the results are ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolation:
    """How to resize: the attributes of the node."""

    mode: str
    transformation: str
    nearest: str
    antialias: bool
    exclude_outside: bool
    coefficient: float
    extrapolation: float
    policy: str

    @classmethod
    def of(cls, attributes: dict[str, Any], opset: int) -> Interpolation:
        """Read them; before opset 11 pixels were found by ``asymmetric`` coordinates, rounded up to a smaller size."""

        def text(name: str, default: str) -> str:
            value = attributes.get(name, default)
            return value.decode() if isinstance(value, bytes) else str(value)

        old = opset < 11
        return cls(
            mode=text("mode", "nearest"),
            transformation="asymmetric" if old else text("coordinate_transformation_mode", "half_pixel"),
            nearest="simple" if old else text("nearest_mode", "round_prefer_floor"),
            antialias=bool(attributes.get("antialias", 0)),
            exclude_outside=bool(attributes.get("exclude_outside", 0)),
            coefficient=float(attributes.get("cubic_coeff_a", -0.75)),
            extrapolation=float(attributes.get("extrapolation_value", 0.0)),
            policy=text("keep_aspect_ratio_policy", "stretch"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: extents before and after, the factor between them, and the part of it that is resized (0..1)."""

    size: int
    output: int
    scale: np.float32
    start: float = 0.0
    end: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Result o is the sum over k of weights[o, k] * pixel[first[o] + k], or the extrapolation value if outside[o]."""

    first: Array
    weights: Array
    outside: Array

    @property
    def is_choice(self) -> bool:
        """Whether every result is a pixel as it is."""
        return self.weights.shape[1] == 1 and bool((self.weights == 1).all())


def place(x: Any, transformation: str, axis: Any, choose: Callable[[Any, Any, Any], Any]) -> Any:
    """Return where result ``x`` lies among the pixels; all numbers are float32, of numpy or of TVM alike.

    ``choose`` is (condition, then, otherwise); ``axis`` has the fields of Axis.
    """
    size, output, scale, start, end = axis.size, axis.output, axis.scale, axis.start, axis.end
    match transformation:
        case "asymmetric":
            return x / scale
        case "pytorch_half_pixel":
            return choose(output > 1, (x + 0.5) / scale - 0.5, x * 0.0)
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "align_corners":
            return choose(output > 1, x * (size - 1.0) / (choose(output > 1, output, 2.0) - 1.0), x * 0.0)
        case "tf_crop_and_resize":
            along = start * (size - 1.0) + x * (end - start) * (size - 1.0) / (choose(output > 1, output, 2.0) - 1.0)
            return choose(output > 1, along, x * 0.0 + 0.5 * (start + end) * (size - 1.0))
        case "half_pixel_symmetric":
            return size / 2.0 * (1.0 - output / (scale * size)) + (x + 0.5) / scale - 0.5
        case _:
            return (x + 0.5) / scale - 0.5


def coordinates(axis: Axis, transformation: str) -> Array:
    """Return where each result of ``axis`` lies among the pixels, in float32."""
    wide = np.float64 if transformation == "half_pixel_symmetric" else np.float32  # as ONNX Runtime adds
    x = np.arange(axis.output, dtype=wide)
    if axis.scale == 1:
        return x.astype(np.float32)
    single = {name: np.float32(getattr(axis, name)) for name in ("size", "output", "scale", "start", "end")}
    found: Array = place(x, transformation, SimpleNamespace(**single), np.where)
    return found.astype(np.float32)


def taps(axis: Axis, rule: Interpolation) -> Taps:
    """Return what each result of ``axis`` reads."""
    where = coordinates(axis, rule.transformation)
    outside = np.zeros(axis.output, np.bool_)
    if rule.transformation == "tf_crop_and_resize":
        outside = (where < 0) | (where > axis.size - 1)
    if rule.mode == "nearest":
        first = np.clip(_nearest(where, rule.nearest, shrinks=bool(axis.scale < 1)), 0, axis.size - 1)
        return Taps(first=first, weights=np.ones((axis.output, 1), np.float32), outside=outside)
    if rule.antialias and axis.output == axis.size:
        dense = np.eye(axis.size, dtype=np.float32)
    else:
        dense = _stretched(axis, where, rule) if rule.antialias else _interpolated(axis, where, rule)
    return _compressed(dense, outside)


def _nearest(where: Array, rounding: str, *, shrinks: bool) -> Array:
    exact = where.astype(np.float64)
    match rounding:
        case "simple":
            rounded = np.ceil(exact) if shrinks else np.trunc(exact)
        case "floor":
            rounded = np.floor(exact)
        case "ceil":
            rounded = np.ceil(exact)
        case _:  # half away from zero, and for round_prefer_floor half down
            rounded = np.copysign(np.floor(np.abs(exact) + 0.5), exact)
            if rounding == "round_prefer_floor":
                rounded = np.where(exact == np.trunc(exact) + 0.5, np.floor(exact), rounded)
    return rounded.astype(np.int64)


def _interpolated(axis: Axis, where: Array, rule: Interpolation) -> Array:
    """Return the weights (output, size) of the two or four pixels around each place; pixels go on past the edge."""
    if rule.mode == "linear":
        where = np.clip(where, np.float32(0), np.float32(axis.size - 1))
    low = np.floor(where)
    part = where - low
    if rule.mode == "linear":
        weights = np.stack([1 - part, part], axis=1)
        offsets = np.arange(2)
    else:
        distances = np.stack([1 + part, part, 1 - part, 2 - part], axis=1)
        weights, offsets = _cubic(distances, rule.coefficient), np.arange(-1, 3)
    return _scattered(axis, low.astype(np.int64)[:, None] + offsets, weights, exclude=rule.exclude_outside)


def _stretched(axis: Axis, where: Array, rule: Interpolation) -> Array:
    """Return the weights (output, size) of a filter that is as wide as the pixels that become one: antialiasing."""
    wide = np.float32(max(1 / axis.scale, np.float32(1)))
    reach = np.float32(1 if rule.mode == "linear" else 2) * wide
    begin = np.floor(where - reach + 1)
    end = np.floor(where + reach + 1)
    positions = begin.astype(np.int64)[:, None] + np.arange(2 * int(np.ceil(reach)) + 1)
    distances = np.abs((positions - where[:, None]) / wide)
    weights = np.maximum(1 - distances, 0) if rule.mode == "linear" else _cubic(distances, rule.coefficient)
    weights = np.where(positions < end[:, None], weights, 0)
    return _scattered(axis, positions, weights / weights.sum(axis=1, keepdims=True), exclude=rule.exclude_outside)


def _cubic(distances: Array, a: float) -> Array:
    """Return the weights of cubic convolution (Keys, 1981) at ``distances`` from a pixel."""
    x = distances.astype(np.float64)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _scattered(axis: Axis, positions: Array, weights: Array, *, exclude: bool) -> Array:
    """Return (output, size): weights at positions, those past an edge added to the edge, or left out if ``exclude``."""
    if exclude:
        weights = np.where((positions < 0) | (positions >= axis.size), 0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    dense = np.zeros((axis.output, axis.size), np.float64)
    rows = np.broadcast_to(np.arange(axis.output)[:, None], positions.shape)
    np.add.at(dense, (rows, np.clip(positions, 0, axis.size - 1)), weights)
    return dense.astype(np.float32)


def _compressed(dense: Array, outside: Array) -> Taps:
    """Keep the stretch of each row that is not zero; all rows get the length of the longest."""
    used = dense != 0
    used[:, 0] |= ~used.any(axis=1)
    first = used.argmax(axis=1)
    last = dense.shape[1] - 1 - used[:, ::-1].argmax(axis=1)
    count = int((last - first).max()) + 1 if len(dense) else 1
    first = np.minimum(first, dense.shape[1] - count)
    return Taps(
        first=first.astype(np.int64),
        weights=np.take_along_axis(dense, first[:, None] + np.arange(count), axis=1),
        outside=outside,
    )


def fitted(sizes: list[int], wanted: list[int], policy: str) -> tuple[list[int], np.float32]:
    """Return the extents that fit ``wanted`` with one factor for all, and that factor."""
    factors = [np.float32(new) / np.float32(old) for old, new in zip(sizes, wanted, strict=True)]
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [int(np.floor(np.float64(factor * np.float32(old)) + 0.5)) for old in sizes], factor
