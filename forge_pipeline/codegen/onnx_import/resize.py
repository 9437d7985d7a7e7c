"""How an axis is resized whose extent is known only when the model runs: a kernel whose results compute where they lie.

What chooses or mixes pixels says so in an annotation, from which schedules of quantized images make their own kernels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import te, tirx

from forge_pipeline.codegen.onnx_import.resize_table import Axis, Interpolation, place, taps

LARGEST_DENOMINATOR = 1 << 8
"""Of factors such as 0.5 and 1.75, by which an extent below 2^16 is multiplied exactly in float32."""

MOST_TIMES, LONG = 16, 1000
"""Whole factors up to this are looked at as such, by an axis of that many pixels."""

CHOICE = "forge.choice"
"""The annotation of a block that chooses or mixes pixels along an axis of unknown extent: which, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An axis whose extent is known when the model runs. ``scale`` is a number, or a tensor expression of one.

    None: the extent of the result by that before.
    """

    output: Any
    scale: Any


def interpolated(image: Any, *, position: int, axis: Open, rule: Interpolation) -> Any:
    """Describe one axis resized whose extent is not known: each result computes where it lies."""
    size = image.shape[position]

    def pixel(index: tuple[Any, ...], at: Any) -> Any:
        at = tirx.min(tirx.max(at, 0), size - 1)
        return image(*index[:position], at, *index[position + 1 :])

    def element(*index: Any) -> Any:
        where = _where(index[position], size, axis, rule)
        if rule.mode == "nearest":
            return pixel(index, tirx.Cast("int64", _rounded(where, rule.nearest)))
        low = tirx.floor(where)
        part, begin = where - low, tirx.Cast("int64", low)
        if rule.mode == "linear":
            return pixel(index, begin) * (1.0 - part) + pixel(index, begin + 1) * part
        weights = [_near(1.0 - part, rule), _near(part, rule)]
        weights = [_far(1.0 + part, rule), weights[1], weights[0], _far(2.0 - part, rule)]
        positions = [begin + offset for offset in (-1, 0, 1, 2)]
        if rule.exclude_outside:
            inside = [tirx.all(at >= 0, at < size) for at in positions]
            weights = [tirx.Select(is_in, weight, 0.0) for is_in, weight in zip(inside, weights, strict=True)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        parts = [pixel(index, at) * weight for at, weight in zip(positions, weights, strict=True)]
        result = parts[0] + parts[1] + parts[2] + parts[3]
        return result / total if rule.exclude_outside else result

    shape = (*image.shape[:position], axis.output, *image.shape[position + 1 :])
    notes = {}
    is_number = axis.scale is None or isinstance(axis.scale, np.floating)
    if is_number and (rule.mode == "nearest" or (rule.mode == "linear" and rule.transformation not in WIDE)):
        scale = None if axis.scale is None else float(axis.scale)
        notes = {CHOICE: json.dumps({"position": position, "scale": scale, "rule": asdict(rule)})}
    return te.compute(shape, element, name="resize", attrs=notes)


WIDE = ("half_pixel_symmetric",)
"""Ways whose coordinates ONNX Runtime computes in double precision."""


def _where(at: Any, size: Any, axis: Open, rule: Interpolation) -> Any:
    """Return where result ``at`` lies among the ``size`` pixels, in float32; mixed linearly, between two of them."""
    extents = {"size": tirx.Cast("float32", size), "output": tirx.Cast("float32", axis.output)}
    given = axis.scale
    if given is None:
        given = extents["output"] / extents["size"]
    elif isinstance(given, np.floating):
        given = tirx.const(given, "float32")
    facts, own = SimpleNamespace(**extents, scale=given, start=0.0, end=1.0), tirx.Cast("float32", at)
    where = tirx.Select(given == 1.0, own, place(own, rule.transformation, facts, tirx.Select))
    return tirx.min(tirx.max(where, 0.0), facts.size - 1.0) if rule.mode == "linear" else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ``CHOICE`` says of an axis; ``output`` is the extent of the result where it does not follow from that."""

    position: int
    scale: np.float32 | None
    rule: Interpolation
    output: Any

    @classmethod
    def of(cls, note: str, shape: Sequence[Any]) -> Choice:
        """Read an annotation of what has a result of ``shape``."""
        facts = json.loads(note)
        scale = None if facts["scale"] is None else np.float32(facts["scale"])
        position = int(facts["position"])
        return cls(position=position, scale=scale, rule=Interpolation(**facts["rule"]), output=shape[position])

    @classmethod
    def unchanged(cls, position: int, size: Any) -> Choice:
        """Return that of an axis that is mixed linearly, and keeps its pixels."""
        return cls(position=position, scale=np.float32(1), rule=Interpolation.of({"mode": "linear"}, 11), output=size)

    def axis(self, size: Any) -> Open:
        """Return the axis of an image of that ``size``, in the words of its kernel."""
        followed = None if self.scale is None else by_fraction(size, self.scale)
        return Open(output=self.output if followed is None else followed, scale=self.scale)

    def described(self, image: Any) -> Any:
        """Describe an image, in either layout, of which pixels are chosen or mixed."""
        axis = self.axis(image.shape[self.position])
        return interpolated(image, position=self.position, axis=axis, rule=self.rule)

    def pixel(self, at: Any, size: Any) -> Any:
        """Return which pixel result ``at`` is, where the nearest is chosen."""
        where = _rounded(_where(at, size, self.axis(size), self.rule), self.rule.nearest)
        return tirx.min(tirx.max(tirx.Cast("int64", where), 0), size - 1)

    def times(self) -> int | None:
        """Return how many results each pixel is, where the nearest is chosen and all are equally many, in order.

        Where a factor is a whole number, a place is at least half a result away from where it would be the next pixel:
        what float32 rounds to the same side for extents up to 2^22. So what holds for a long axis does for all.
        """
        if self.scale is None or self.scale < 1 or not float(self.scale).is_integer() or self.scale > MOST_TIMES:
            return None
        times = int(self.scale)
        table = taps(Axis(size=LONG, output=LONG * times, scale=self.scale), self.rule).first
        return times if np.array_equal(table, np.arange(LONG * times) // times) else None

    def between(self, at: Any, size: Any) -> tuple[Any, Any]:
        """Return the pixel before the place of result ``at``, which is mixed linearly, and the share of the next."""
        where = _where(at, size, self.axis(size), self.rule)
        low = tirx.floor(where)
        return tirx.Cast("int64", low), where - low

    def mixed(self, at: Any, size: Any) -> tuple[list[Any], list[Any]]:
        """Return the two pixels that result ``at`` mixes linearly, and their weights, as ONNX Runtime has them.

        The last pixel, where it is read alone, is two of one half each.
        """
        first, part = self.between(at, size)
        alone = first >= size - 1
        shares = [tirx.Select(alone, 0.5, 1.0 - part), tirx.Select(alone, 0.5, part)]
        return [first, tirx.min(first + 1, size - 1)], shares


def by_fraction(extent: Any, scale: np.float32) -> Any:
    """Return floor(extent * scale) in whole numbers; None where the factor's denominator is too large for that."""
    exact = Fraction(float(scale))
    return extent * exact.numerator // exact.denominator if exact.denominator <= LARGEST_DENOMINATOR else None


def _near(x: Any, rule: Interpolation) -> Any:
    """Return the weight of a pixel at distance ``x`` up to 1: cubic convolution (Keys, 1981)."""
    a = rule.coefficient
    return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0


def _far(x: Any, rule: Interpolation) -> Any:
    """Return the weight of a pixel at distance ``x`` from 1 to 2."""
    a = rule.coefficient
    return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a


def _rounded(where: Any, rounding: str) -> Any:
    if rounding in ("floor", "simple"):
        return tirx.floor(where)
    if rounding == "ceil":
        return tirx.ceil(where)
    return tirx.ceil(where - 0.5) if rounding == "round_prefer_floor" else tirx.floor(where + 0.5)
