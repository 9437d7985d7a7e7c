"""Signal-to-noise sums: known values, streaming, and the corners where a ratio has no meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from forge_pipeline.evaluation.noise import FLOOR_DB, Noise

VALUES = st.floats(-1e3, 1e3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)
SIGNALS = arrays(np.float32, array_shapes(max_dims=2, max_side=20), elements=VALUES)


def of(reference: np.ndarray, value: np.ndarray) -> Noise:
    noise = Noise()
    noise.update(reference, value)
    return noise


@pytest.mark.parametrize(("factor", "decibel"), [(1.1, 20.0), (0.9, 20.0), (1.01, 40.0), (2.0, 0.0), (11.0, -20.0)])
def test_an_error_of_a_tenth_of_the_signal_is_20_db(factor: float, decibel: float) -> None:
    signal = np.linspace(-3, 5, 100)
    assert of(signal, signal * factor).sqnr_db == pytest.approx(decibel)


@given(SIGNALS, st.floats(0.01, 100))
def test_the_ratio_does_not_depend_on_the_scale_of_both(signal: np.ndarray, scale: float) -> None:
    exact = signal.astype(np.float64)
    near = np.round(exact * 4) / 4
    first, second = of(exact, near), of(exact * scale, near * scale)
    assert first.ratio == pytest.approx(second.ratio, rel=1e-9)


@given(SIGNALS, st.integers(0, 20))
def test_parts_add_up_to_the_whole(signal: np.ndarray, cut: int) -> None:
    flat = signal.reshape(-1)
    near = np.round(flat)
    parts = Noise()
    parts.update(flat[:cut], near[:cut])
    parts.update(flat[cut:], near[cut:])
    whole = of(flat, near)
    assert parts.ratio == pytest.approx(whole.ratio)
    assert (parts.max_abs, parts.peak) == (whole.max_abs, whole.peak)


@given(SIGNALS)
def test_no_error_is_no_noise_and_has_no_decibels(signal: np.ndarray) -> None:
    noise = of(signal, signal.copy())
    assert (noise.ratio, noise.sqnr_db, noise.max_abs) == (0.0, None, 0.0)


def test_the_largest_error_is_absolute_and_relative_to_the_largest_value() -> None:
    noise = of(np.array([1.0, -8.0, 4.0]), np.array([1.5, -8.0, 2.0]))
    assert (noise.max_abs, noise.max_rel) == (2.0, 0.25)


def test_noise_without_a_signal_is_the_floor() -> None:
    noise = of(np.zeros(4), np.ones(4))
    assert (noise.sqnr_db, noise.max_rel) == (FLOOR_DB, None)


def test_infinities_and_nan_that_agree_are_left_out() -> None:
    exact = np.array([1.0, -np.inf, np.nan, 2.0])
    assert of(exact, np.array([1.0, -np.inf, np.nan, 2.2])).sqnr_db == pytest.approx(10 * np.log10(5 / 0.04))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_finite_value_that_becomes_infinite_or_nan_is_the_floor(bad: float) -> None:
    assert of(np.array([1.0, 2.0]), np.array([1.0, bad])).sqnr_db == FLOOR_DB
    assert of(np.array([1.0, bad]), np.array([1.0, 2.0])).sqnr_db == FLOOR_DB


def test_integers_and_booleans_are_compared_as_numbers() -> None:
    assert of(np.array([True, True]), np.array([True, False])).ratio == 0.5
    assert of(np.array([2**60, 0], np.int64), np.array([0, 0], np.int64)).ratio == 1.0
