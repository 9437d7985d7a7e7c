"""Weights rounded together: never worse at the output than one by one, and the same layer whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.data import Feed
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.accuracy.weight_rounding import descend, round_weights, shrink
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.plan import make_plan
from forge_pipeline.quantization.weights import WeightScheme

SCHEME = WeightScheme(kind=INTEGERS["int8"], limit=64, per_channel=True)


def problem(seed: int, columns: int) -> tuple[Any, Any, Any]:
    """Correlated inputs, weights of two groups, and their scales."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(2, 300, columns)) @ draw.normal(size=(2, columns, columns)) + 1.0
    weights = draw.normal(size=(2, 3, columns)).astype(np.float32)
    scale = (np.abs(weights).max(axis=2, keepdims=True) / 7).astype(np.float32)
    return weights, scale, (inputs.transpose(0, 2, 1) @ inputs / 300).astype(np.float32)


def loss(weights: Any, scale: Any, moments: Any, steps: Any) -> Any:
    error = (weights - steps * scale).astype(np.float64)
    return np.einsum("goi,gij,goj->go", error, moments.astype(np.float64), error)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 150))
def test_no_output_is_worse_than_with_the_nearest_integers(seed: int, columns: int) -> None:
    weights, scale, moments = problem(seed, columns)
    together = loss(weights, scale, moments, descend(weights, scale, moments, 7))
    nearest = loss(weights, scale, moments, np.clip(np.rint(weights / scale), -7, 7))
    assert (together <= nearest * 1.0001 + 1e-9).all()


def test_correlated_inputs_halve_the_loss() -> None:
    weights, scale, moments = problem(0, 100)
    together = loss(weights, scale, moments, descend(weights, scale, moments, 7))
    assert together.sum() < 0.5 * loss(weights, scale, moments, np.rint(weights / scale)).sum()


@given(st.integers(0, 2**32 - 1))
def test_without_correlation_the_nearest_integers_are_best(seed: int) -> None:
    weights, scale, moments = problem(seed, 20)
    alone = moments * np.eye(20, dtype=np.float32)
    assert (descend(weights, scale, alone, 7) == np.rint(weights / scale)).all()


def test_few_rows_leave_little_of_what_is_off_the_diagonal() -> None:
    _, _, moments = problem(1, 20)
    for rows, left in ((1, 1 / 21), (20, 0.5), (20_000, 0.999)):
        found = shrink(moments, rows)
        np.testing.assert_allclose(found[:, 0, 1], moments[:, 0, 1] * left, rtol=1e-3)
        assert (np.diagonal(found, axis1=1, axis2=2) == np.diagonal(moments, axis1=1, axis2=2)).all()


LAYERS = {
    "strided": ("Conv<pads=[1, 0, 1, 2], strides=[2, 1]>(x, w)", (5, 6, 3, 2)),
    "dilated": ("Conv<dilations=[2, 1], pads=[2, 1, 2, 1]>(x, w)", (5, 6, 3, 3)),
    "grouped": ("Conv<group=2>(x, w)", (4, 3, 3, 3)),
    "depthwise": ("Conv<group=6, auto_pad=\"SAME_UPPER\", strides=[2, 2]>(x, w)", (6, 1, 3, 3)),
    "dense": ("MatMul(x, w)", (9, 7)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_any_kind_loses_less_on_the_samples_it_was_rounded_on(
    parse: Callable[..., ONNXModule], kind: str
) -> None:
    text, shape = LAYERS[kind]
    draw = np.random.default_rng(4)
    weights = draw.normal(size=shape).astype(np.float32)
    net = parse(
        f'<ir_version: 10, opset_import: ["": 17]> net (float[1, 6, 8, 9] x) => (float[N, C, H, W] y) {{ y = {text} }}',
        {"w": weights},
    )
    feeds: list[Feed] = []
    for _ in range(6):
        image = draw.normal(size=(1, 6, 8, 9)).cumsum(axis=2).cumsum(axis=3)
        feeds.append({"x": (image + image.sum(axis=1, keepdims=True)).astype(np.float32)})
    network = Network(prepare(net.mod))
    steps = round_weights(network, make_plan(network), SCHEME, [Probe.of(feed, None) for feed in feeds])
    assert steps is not None
    axis = 1 if kind == "dense" else 0
    scale = SCHEME.scale(weights, axis)
    wide = scale if axis else scale.reshape(-1, 1, 1, 1)

    def noise(integers: Any) -> float:
        other = network.with_arrays({"w": (integers * wide).astype(np.float32)})
        one, two = Interpreter(network.model, optimized=True), Interpreter(other.model, optimized=True)
        return sum(float(((one(feed)["y"] - two(feed)["y"]) ** 2).sum()) for feed in feeds)

    assert np.abs(steps["w"]).max() <= SCHEME.limit
    assert noise(steps["w"]) < 0.75 * noise(np.rint(weights / wide))
