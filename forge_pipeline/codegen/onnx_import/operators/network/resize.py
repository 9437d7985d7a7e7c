"""Resize and Upsample: one kernel for each axis, from a table where the extent is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from forge_pipeline.codegen.float32.resample import resample
from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.resize import MOST_TIMES, Open, interpolated
from forge_pipeline.codegen.onnx_import.resize_table import Axis, Interpolation, fitted, taps
from forge_pipeline.ir.sizes.expression import Whole

Array = np.ndarray[Any, Any]
Region = tuple[float, float]
"""The part of an axis that is resized, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a node asks for: its operands by their indices (None: absent), and the axes that it names."""

    rule: Interpolation
    roi: int | None
    scales: int | None
    sizes: int | None
    named: Sequence[int]

    @classmethod
    def of(cls, node: NodeImport) -> _Asked:
        """Read a node of any operator set: scales came second before set 11, and sizes came with it."""
        rank = node.rank()
        named = [int(axis) % rank for axis in node.attributes.get("axes", range(rank))]
        is_old = node.opset < 11 or node.proto.op_type == "Upsample"
        roi, scales, sizes = (None, 1, None) if is_old else (1, 2, 3)
        has_scales = scales is not None and node.has(scales) and 0 not in node.shape(scales)
        has_sizes = sizes is not None and node.has(sizes) and not has_scales
        return cls(
            rule=Interpolation.of(dict(node.attributes), 10 if is_old else node.opset),
            roi=roi,
            scales=scales if has_scales else None,
            sizes=sizes if has_sizes else None,
            named=named,
        )

    def regions(self, node: NodeImport) -> dict[int, Region]:
        """Return the region of interest on every axis."""
        if self.rule.transformation != "tf_crop_and_resize" or self.roi is None:
            return dict.fromkeys(self.named, (0.0, 1.0))
        numbers = [float(number) for number in node.needed(self.roi, "a roi")]
        count = len(self.named)
        return {axis: (numbers[index], numbers[count + index]) for index, axis in enumerate(self.named)}


def _resize(node: NodeImport) -> Any:
    """Resize axis by axis, the one that shrinks most first, so that the others have least to do."""
    asked = _Asked.of(node)
    if asked.rule.mode != "nearest" and "float" not in node.dtype():
        raise NotImplementedError(f"{asked.rule.mode} of {node.dtype()}")
    axes = _axes(node, asked)
    value = node.input(0)
    for position, axis in sorted(axes.items()):
        if isinstance(axis, Open):
            value = _open(node, value, position, axis, asked)
    return _resampled(node, value, {at: axis for at, axis in axes.items() if isinstance(axis, Axis)}, asked.rule)


def _open(node: NodeImport, value: Any, position: int, axis: Open, asked: _Asked) -> Any:
    """Emit an axis of which one of the extents is known when the model runs, or its factor."""
    rule = asked.rule
    if rule.antialias or rule.transformation == "tf_crop_and_resize":
        what = "antialias" if rule.antialias else rule.transformation
        raise NotImplementedError(f"{what} of an extent that is not known")
    if rule.nearest == "simple":
        rule = replace(rule, nearest="ceil" if axis.scale is not None and axis.scale < 1 else "floor")
    wanted = [node.result_shape()[position]]
    if asked.scales is not None and axis.scale is None:
        if node.opset < 11 or rule.transformation == "align_corners":
            raise NotImplementedError(f"{rule.transformation} by scales that are computed")
        place = asked.named.index(position)

        def scaled(image: Any, factors: Any, output: Any) -> Any:
            own = Open(output=output, scale=factors(place).astype("float32"))
            return interpolated(image, position=position, axis=own, rule=rule)

        return node.kernel(scaled, value, node.input(asked.scales), sizes=wanted, name="resize")

    def template(image: Any, output: Any) -> Any:
        return interpolated(image, position=position, axis=replace(axis, output=output), rule=rule)

    return node.kernel(template, value, sizes=wanted, name="resize")


def _resampled(node: NodeImport, value: Any, axes: dict[int, Axis], rule: Interpolation) -> Any:
    rank, dtype = node.rank(), node.dtype()
    outside: Array = np.zeros((1,) * rank, np.bool_)
    for position, axis in sorted(axes.items(), key=lambda item: (item[1].output / item[1].size, item[0])):
        table = taps(axis, rule)
        first = relax.const(table.first)
        if table.is_choice:
            value = node.emit(op.take(value, first, axis=position, mode="clip"))
        else:
            weights = relax.const(table.weights.astype(dtype))
            value = node.scope.builder.emit_te(resample, value, first, weights, position, primfunc_name_hint="resample")
        outside = outside | table.outside.reshape([-1 if at == position else 1 for at in range(rank)])
    if outside.any():
        value = op.where(relax.const(outside), node.const(rule.extrapolation, dtype), value)
    return value


def _axes(node: NodeImport, asked: _Asked) -> dict[int, Axis | Open]:
    """Return the axes that are resized."""
    extents, regions = node.shape(), asked.regions(node)
    if asked.scales is not None or asked.sizes is None:
        return _scaled_axes(node, asked, regions)
    wanted = dict(zip(asked.named, node.contents(asked.sizes, "sizes"), strict=True))
    if asked.rule.policy == "stretch":
        changed = {axis: size for axis, size in wanted.items() if extents[axis] != size}
        return {axis: _sized(extents[axis], size, regions[axis]) for axis, size in changed.items()}
    before = {axis: extents[axis] for axis in asked.named}
    if not all(isinstance(number, int) for number in (*before.values(), *wanted.values())):
        raise NotImplementedError(f"keep_aspect_ratio_policy {asked.rule.policy} of an extent that is not known")
    sizes = [int(size) for size in before.values()]  # type: ignore[arg-type]
    outputs, factor = fitted(sizes, [int(size) for size in wanted.values()], asked.rule.policy)  # type: ignore[arg-type]
    made: dict[int, Axis | Open] = {
        axis: Axis(size=size, output=output, scale=factor, start=regions[axis][0], end=regions[axis][1])
        for axis, size, output in zip(asked.named, sizes, outputs, strict=True)
    }
    return made if factor != 1 else {}


def _scaled_axes(node: NodeImport, asked: _Asked, regions: Mapping[int, Region]) -> dict[int, Axis | Open]:
    """Return the axes that scales resize."""
    if asked.scales is None or (node.opset < 9 and "scales" in node.attributes):
        given: Array | None = np.array(node.attributes["scales"], np.float32)
    else:
        given = node.constant(asked.scales)
    before, after = node.shape(), node.result_shape()
    if given is None:
        return {axis: Open(output=after[axis], scale=None) for axis in asked.named if before[axis] != after[axis]}
    factors = dict(zip(asked.named, given.astype(np.float32).reshape(-1), strict=True))
    return {
        axis: _scaled(before[axis], after[axis], factor, regions[axis], asked.rule)
        for axis, factor in factors.items()
        if factor != 1
    }


def _scaled(extent: Whole, output: Whole, factor: np.float32, region: Region, rule: Interpolation) -> Axis | Open:
    """Return an axis whose result has floor(extent * factor) numbers, a product in float32 as in ONNX Runtime."""
    if isinstance(extent, int):
        exactly = np.float32(extent) * factor
        if rule.transformation == "align_corners" and int(exactly) != exactly:
            raise NotImplementedError(f"align_corners from {extent} to {exactly} pixels: ONNX Runtime drops the part")
        return Axis(size=extent, output=int(exactly), scale=factor, start=region[0], end=region[1])
    if rule.transformation == "align_corners" and not float(factor).is_integer():
        raise NotImplementedError(f"align_corners with scale {factor} of an extent that is not known")
    return Open(output=output, scale=factor)


def _sized(extent: Whole, size: Whole, region: Region) -> Axis | Open:
    if isinstance(extent, int) and isinstance(size, int):
        return Axis(
            size=extent, output=size, scale=np.float32(size) / np.float32(extent), start=region[0], end=region[1]
        )
    times = next((times for times in range(2, MOST_TIMES + 1) if size == extent * times), None)
    return Open(output=size, scale=None if times is None else np.float32(times))


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize, "Upsample": _resize}
