"""Ranges that values cannot leave, by interval arithmetic from the inputs.

Source: Moore, "Interval Analysis", 1966. Bounds are widened by a few units of rounding, so that they hold for the
float computation too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import Analysis, Equality, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute
from forge_pipeline.registry import Registry

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)
WIDER = 1e-5
INTEGER_RANGES = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767), 9: (0, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """``inputs``: [low, high] of inputs by name; others have what their type can hold."""

    inputs: dict[str, list[float]] = field(default_factory=dict)


@verified(Equality())
class AnnotateRanges(Analysis[RangeOptions]):
    """Find out bounded ranges of values and record them as ``ranges`` among the findings."""

    in_bodies = False
    options_type = RangeOptions

    def call(self, graph: Graph) -> int:
        """Walk down once; a value whose rule is not known may be anything."""
        ranges = _Ranges(graph, self.options.inputs)
        for node in graph.nodes:
            rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            found = EVERYTHING if rule is None else rule(ranges, node)
            ranges.known[node.output[0]] = _widened(found)
        graph.findings["ranges"] = {
            name: [low, high]
            for name, (low, high) in ranges.known.items()
            if name and math.isfinite(low) and math.isfinite(high)
        }
        return 0


@dataclass(slots=True)
class _Ranges:
    graph: Graph
    inputs: dict[str, list[float]]
    known: dict[str, Interval] = field(default_factory=dict)

    def of(self, name: str) -> Interval:
        if name in self.known:
            return self.known[name]
        array = self.graph.array(name)
        if array is not None and array.dtype.kind in "fiub" and array.size and not np.isnan(array).any():
            return float(array.min()), float(array.max())
        if name in self.inputs:
            return float(self.inputs[name][0]), float(self.inputs[name][1])
        return INTEGER_RANGES.get(self.graph.elem_type(name), EVERYTHING)


Rule = Callable[[_Ranges, NodeProto], Interval]


def _widened(interval: Interval) -> Interval:
    low, high = interval
    if math.isnan(low) or math.isnan(high):
        return EVERYTHING
    return (low - WIDER * abs(low), high + WIDER * abs(high))


def _same(ranges: _Ranges, node: NodeProto) -> Interval:
    return ranges.of(node.input[0])


def _within(low: float, high: float) -> Rule:
    def rule(ranges: _Ranges, node: NodeProto) -> Interval:
        return low, high

    return rule


def _monotone(function: Callable[[Any], Any]) -> Rule:
    def rule(ranges: _Ranges, node: NodeProto) -> Interval:
        low, high = ranges.of(node.input[0])
        with np.errstate(over="ignore"):
            return float(function(np.float64(low))), float(function(np.float64(high)))

    return rule


def _union(ranges: _Ranges, node: NodeProto) -> Interval:
    parts = [ranges.of(name) for name in node.input]
    return min(part[0] for part in parts), max(part[1] for part in parts)


def _corners(function: Callable[[float, float], float]) -> Rule:
    def rule(ranges: _Ranges, node: NodeProto) -> Interval:
        if len(node.input) != 2:
            return EVERYTHING
        left, right = ranges.of(node.input[0]), ranges.of(node.input[1])
        values = [function(a, b) for a in left for b in right]
        return min(values), max(values)

    return rule


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _quotient(ranges: _Ranges, node: NodeProto) -> Interval:
    low, high = ranges.of(node.input[1])
    if low <= 0 <= high:
        return EVERYTHING
    inverse = sorted((1 / low, 1 / high))
    values = [_product(a, b) for a in ranges.of(node.input[0]) for b in inverse]
    return min(values), max(values)


def _clip(ranges: _Ranges, node: NodeProto) -> Interval:
    low, high = ranges.of(node.input[0])
    if ranges.graph.opset() < 11:
        bounds = attribute(node, "min", -math.inf), attribute(node, "max", math.inf)
    else:
        given = [ranges.of(name) if name else EVERYTHING for name in [*node.input[1:], "", ""]]
        bounds = given[0][0], given[1][1]
    return min(max(low, bounds[0]), bounds[1]), max(min(high, bounds[1]), bounds[0])


def _linear(ranges: _Ranges, node: NodeProto) -> Interval:
    """Conv and MatMul by constant weights: the sum of what each weight can contribute."""
    weight = ranges.graph.array(node.input[1])
    low, high = ranges.of(node.input[0])
    if weight is None or weight.ndim < 2 or not math.isfinite(low) or not math.isfinite(high):
        return EVERYTHING
    wide = weight.astype(np.float64)
    axes = tuple(range(1, wide.ndim)) if node.op_type == "Conv" else (wide.ndim - 2,)
    if node.op_type == "Conv":
        low, high = min(low, 0.0), max(high, 0.0)  # padding adds zeros
    positive, negative = np.maximum(wide, 0).sum(axes), np.minimum(wide, 0).sum(axes)
    bottom, top = positive * low + negative * high, positive * high + negative * low
    if len(node.input) > 2 and node.input[2]:
        bias = ranges.graph.array(node.input[2])
        if bias is None:
            return EVERYTHING
        bottom, top = bottom + bias, top + bias
    return float(bottom.min()), float(top.max())


RULES: Registry[Rule] = Registry(
    "range rule",
    {
        **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"), _same),
        **dict.fromkeys(("Gather", "Expand", "Tile", "MaxPool", "GlobalMaxPool", "ReduceMean"), _same),
        **dict.fromkeys(("GlobalAveragePool", "ReduceMax", "ReduceMin", "DepthToSpace", "Dropout"), _same),
        **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax"), _within(0.0, 1.0)),
        **dict.fromkeys(("Tanh", "Sin", "Cos", "Erf", "Softsign", "Sign"), _within(-1.0, 1.0)),
        **dict.fromkeys(("Conv", "MatMul"), _linear),
        "Relu": _monotone(lambda x: np.maximum(x, 0)), "Exp": _monotone(np.exp), "Clip": _clip, "Concat": _union,
        "Floor": _monotone(np.floor), "Ceil": _monotone(np.ceil), "Round": _monotone(np.rint),
        "Add": _corners(lambda a, b: a + b), "Sub": _corners(lambda a, b: a - b), "Mul": _corners(_product),
        "Div": _quotient, "Max": _corners(max), "Min": _corners(min),
    },
)  # fmt: skip
