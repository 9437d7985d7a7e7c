"""Converters for Resize and Upsample: one kernel for each axis, from a table where the extent is known.

TVM's own takes the factor from the extents, which is another where the scaled extent is no whole number, and lacks
antialiasing, half_pixel_symmetric, axes and policies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from forge_pipeline.codegen.onnx_import.resize_table import Axis, Way, fitted, place, taps

Array = np.ndarray[Any, Any]

LARGEST_DENOMINATOR = 1 << 8
"""Of factors such as 0.5 and 1.75, by which an extent below 2^16 is multiplied exactly in float32."""

CHOICE = "forge.choice"
"""The annotation of a block that chooses or mixes pixels along an axis of unknown extent: which, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An axis whose extent is known when the model runs; ``scale`` None: the extent of the result by that before."""

    output: Any
    scale: np.float32 | None


def convert_resize(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Resize axis by axis, the one that shrinks most first, so that the others have least to do."""
    way = Way.of(attributes, opset)
    axes = _axes(inputs, attributes, way, opset)
    kernel, shape = attributes["forge_kernel"], attributes["forge_shape"]
    value = inputs[0]
    for position, axis in sorted(axes.items()):
        if isinstance(axis, Open):
            value = _open(kernel, value, position, replace(axis, output=shape[position]), way)
    return _resampled(builder, value, {at: axis for at, axis in axes.items() if isinstance(axis, Axis)}, way)


def _open(kernel: Any, value: Any, position: int, axis: Open, way: Way) -> Any:
    if way.antialias or way.transformation == "tf_crop_and_resize" or way.nearest == "simple":
        asked = "antialias" if way.antialias else way.transformation
        raise NotImplementedError(f"{asked} of an extent that is not known")

    def template(image: Any, output: Any) -> Any:
        return _interpolated(image, position=position, axis=replace(axis, output=output), way=way)

    return kernel(template, value, sizes=[axis.output], name="resize")


def convert_upsample(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Upsample, which Resize of opset 10 replaced; before opset 9 its scales were an attribute."""
    from tvm import relax

    scales = inputs[1] if opset >= 9 else relax.const(np.array(attributes["scales"], np.float32))
    return convert_resize(builder, [inputs[0], scales], attributes, min(opset, 10))


def _resampled(builder: Any, value: Any, axes: dict[int, Axis], way: Way) -> Any:
    from tvm import relax
    from tvm.relax import op

    from forge_pipeline.codegen.float32.resample import resample

    rank, dtype = len(value.ty.shape.values), str(value.ty.dtype)
    outside: Array = np.zeros((1,) * rank, np.bool_)
    for position, axis in sorted(axes.items(), key=lambda item: (item[1].output / item[1].size, item[0])):
        table = taps(axis, way)
        first = relax.const(table.first)
        if table.is_choice:
            value = builder.emit(op.take(value, first, axis=position, mode="clip"))
        else:
            weights = relax.const(table.weights.astype(dtype))
            value = builder.emit_te(resample, value, first, weights, position, primfunc_name_hint="resample")
        outside = outside | table.outside.reshape([-1 if at == position else 1 for at in range(rank)])
    if outside.any():
        value = op.where(relax.const(outside), relax.const(np.array(way.extrapolation, dtype)), value)
    return value


def _axes(inputs: list[Any], attributes: dict[str, Any], way: Way, opset: int) -> dict[int, Axis | Open]:
    """Return the axes that are resized."""
    from tvm import relax
    from tvm.ir import GenericConst

    extents = list(inputs[0].ty.shape.values)
    given = [*inputs, None, None, None][:4] if opset >= 11 else [inputs[0], None, inputs[1], None]
    _, roi, scales, sizes = given
    named = [int(axis) % len(extents) for axis in attributes.get("axes", range(len(extents)))]
    region = _region(roi, named, way)
    if isinstance(scales, GenericConst) and scales.value.numpy().size:
        factors = dict(zip(named, scales.value.numpy().astype(np.float32), strict=True))
        changed = {axis: factor for axis, factor in factors.items() if factor != 1}
        return {axis: _scaled(extents[axis], factor, region[axis], way) for axis, factor in changed.items()}
    if not isinstance(sizes, GenericConst | relax.ShapeExpr):
        raise NotImplementedError("scales or sizes that are computed from data")
    wanted = dict(zip(named, _listed(sizes), strict=True))
    if way.policy == "stretch":
        changed = {axis: size for axis, size in wanted.items() if not _is_same(extents[axis], size)}
        return {axis: _sized(extents[axis], size, region[axis]) for axis, size in changed.items()}
    if not all(_is_number(extents[axis]) and _is_number(wanted[axis]) for axis in named):
        raise NotImplementedError(f"keep_aspect_ratio_policy {way.policy} of an extent that is not known")
    before = {axis: int(extents[axis]) for axis in named}
    outputs, factor = fitted(list(before.values()), [int(wanted[axis]) for axis in named], way.policy)
    made: dict[int, Axis | Open] = {
        axis: Axis(size=before[axis], output=output, scale=factor, start=region[axis][0], end=region[axis][1])
        for axis, output in zip(named, outputs, strict=True)
    }
    return made if factor != 1 else {}


def _scaled(extent: Any, factor: np.float32, region: tuple[float, float], way: Way) -> Axis | Open:
    """Return an axis whose result has floor(extent * factor) numbers, a product in float32 as in ONNX Runtime."""
    from tvm import tirx

    if _is_number(extent):
        exactly = np.float32(int(extent)) * factor
        output = int(exactly)
        if way.transformation == "align_corners" and output != exactly:
            raise NotImplementedError(
                f"align_corners from {int(extent)} to {exactly} pixels: ONNX Runtime drops the part"
            )
        return Axis(size=int(extent), output=output, scale=factor, start=region[0], end=region[1])
    exact = Fraction(float(factor))
    if way.transformation == "align_corners" and exact.denominator > 1:
        raise NotImplementedError(f"align_corners with scale {factor} of an extent that is not known")
    output = _by_fraction(extent, factor)
    if output is not None:  # whole numbers, so that what follows can compare the extents
        return Open(output=output, scale=factor)
    product = tirx.Cast("float32", extent) * tirx.const(factor, "float32")
    return Open(output=tirx.Cast("int64", product), scale=factor)


def _sized(extent: Any, size: Any, region: tuple[float, float]) -> Axis | Open:
    if _is_number(extent) and _is_number(size):
        scale = np.float32(int(size)) / np.float32(int(extent))
        return Axis(size=int(extent), output=int(size), scale=scale, start=region[0], end=region[1])
    return Open(output=size, scale=None)


def _region(roi: Any, named: list[int], way: Way) -> dict[int, tuple[float, float]]:
    """Return start and end of the region of interest, which is a constant (``traps``), on every axis."""
    if way.transformation != "tf_crop_and_resize":
        return dict.fromkeys(named, (0.0, 1.0))
    numbers = [float(number) for number in roi.value.numpy()]
    return {axis: (numbers[index], numbers[len(named) + index]) for index, axis in enumerate(named)}


def _listed(sizes: Any) -> list[Any]:
    from tvm import relax

    return list(sizes.values) if isinstance(sizes, relax.ShapeExpr) else [int(size) for size in sizes.value.numpy()]


def _is_number(extent: Any) -> bool:
    from tvm import tirx

    return isinstance(extent, int | tirx.IntImm)


def _is_same(left: Any, right: Any) -> bool:
    from tvm.sym.analyzer import Analyzer

    if _is_number(left) and _is_number(right):
        return int(left) == int(right)
    return bool(Analyzer().can_prove_equal(left, right))


def _interpolated(image: Any, *, position: int, axis: Open, way: Way) -> Any:
    """Describe one axis resized whose extent is not known: each result computes where it lies."""
    from tvm import te, tirx

    size = image.shape[position]

    def pixel(index: tuple[Any, ...], at: Any) -> Any:
        at = tirx.min(tirx.max(at, 0), size - 1)
        return image(*index[:position], at, *index[position + 1 :])

    def element(*index: Any) -> Any:
        where = _where(index[position], size, axis, way)
        if way.mode == "nearest":
            return pixel(index, tirx.Cast("int64", _rounded(where, way.nearest)))
        low = tirx.floor(where)
        part, begin = where - low, tirx.Cast("int64", low)
        if way.mode == "linear":
            return pixel(index, begin) * (1.0 - part) + pixel(index, begin + 1) * part
        weights = [_near(1.0 - part, way), _near(part, way)]
        weights = [_far(1.0 + part, way), weights[1], weights[0], _far(2.0 - part, way)]
        positions = [begin + offset for offset in (-1, 0, 1, 2)]
        if way.exclude_outside:
            inside = [tirx.all(at >= 0, at < size) for at in positions]
            weights = [tirx.Select(is_in, weight, 0.0) for is_in, weight in zip(inside, weights, strict=True)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        parts = [pixel(index, at) * weight for at, weight in zip(positions, weights, strict=True)]
        result = parts[0] + parts[1] + parts[2] + parts[3]
        return result / total if way.exclude_outside else result

    shape = (*image.shape[:position], axis.output, *image.shape[position + 1 :])
    notes = {}
    if way.mode == "nearest" or (way.mode == "linear" and way.transformation not in WIDE):
        scale = None if axis.scale is None else float(axis.scale)
        notes = {CHOICE: json.dumps({"position": position, "scale": scale, "way": asdict(way)})}
    return te.compute(shape, element, name="resize", attrs=notes)


WIDE = ("half_pixel_symmetric",)
"""Ways whose coordinates ONNX Runtime computes in double precision."""


def _where(at: Any, size: Any, axis: Open, way: Way) -> Any:
    """Return where result ``at`` lies among the ``size`` pixels, in float32; mixed linearly, between two of them."""
    from tvm import tirx

    extents = {"size": tirx.Cast("float32", size), "output": tirx.Cast("float32", axis.output)}
    given = extents["output"] / extents["size"] if axis.scale is None else tirx.const(axis.scale, "float32")
    facts, own = SimpleNamespace(**extents, scale=given, start=0.0, end=1.0), tirx.Cast("float32", at)
    where = tirx.Select(given == 1.0, own, place(own, way.transformation, facts, tirx.Select))
    return tirx.min(tirx.max(where, 0.0), facts.size - 1.0) if way.mode == "linear" else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ``CHOICE`` says of an axis; ``output`` is the extent of the result where it does not follow from that."""

    position: int
    scale: np.float32 | None
    way: Way
    output: Any

    @classmethod
    def of(cls, note: str, shape: Sequence[Any]) -> Choice:
        """Read an annotation of what has a result of ``shape``."""
        facts = json.loads(note)
        scale = None if facts["scale"] is None else np.float32(facts["scale"])
        position = int(facts["position"])
        return cls(position=position, scale=scale, way=Way(**facts["way"]), output=shape[position])

    @classmethod
    def unchanged(cls, position: int, size: Any) -> Choice:
        """Return that of an axis that is mixed linearly, and keeps its pixels."""
        return cls(position=position, scale=np.float32(1), way=Way.of({"mode": "linear"}, 11), output=size)

    def axis(self, size: Any) -> Open:
        """Return the axis of an image of that ``size``, in the words of its kernel."""
        followed = None if self.scale is None else _by_fraction(size, self.scale)
        return Open(output=self.output if followed is None else followed, scale=self.scale)

    def described(self, image: Any) -> Any:
        """Describe an image, in either layout, of which pixels are chosen or mixed."""
        axis = self.axis(image.shape[self.position])
        return _interpolated(image, position=self.position, axis=axis, way=self.way)

    def mixed(self, at: Any, size: Any) -> tuple[list[Any], list[Any]]:
        """Return the two pixels that result ``at`` mixes linearly, and their weights, as ONNX Runtime has them.

        The last pixel, where it is read alone, is two of one half each.
        """
        from tvm import tirx

        where = _where(at, size, self.axis(size), self.way)
        low = tirx.floor(where)
        first, part = tirx.Cast("int64", low), where - low
        alone = first >= size - 1
        shares = [tirx.Select(alone, 0.5, 1.0 - part), tirx.Select(alone, 0.5, part)]
        return [first, tirx.min(first + 1, size - 1)], shares


def _by_fraction(extent: Any, scale: np.float32) -> Any:
    """Return floor(extent * scale) in whole numbers; None where the factor's denominator is too large for that."""
    exact = Fraction(float(scale))
    return extent * exact.numerator // exact.denominator if exact.denominator <= LARGEST_DENOMINATOR else None


def _near(x: Any, way: Way) -> Any:
    """Return the weight of a pixel at distance ``x`` up to 1: cubic convolution (Keys, 1981)."""
    a = way.coefficient
    return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0


def _far(x: Any, way: Way) -> Any:
    """Return the weight of a pixel at distance ``x`` from 1 to 2."""
    a = way.coefficient
    return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a


def _rounded(where: Any, rounding: str) -> Any:
    from tvm import tirx

    if rounding in ("floor", "simple"):
        return tirx.floor(where)
    if rounding == "ceil":
        return tirx.ceil(where)
    return tirx.ceil(where - 0.5) if rounding == "round_prefer_floor" else tirx.floor(where + 0.5)
