"""Every method, from the same statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.errors import ConfigError
from forge_pipeline.quantization.calibration.range_methods import METHODS, Options
from forge_pipeline.quantization.calibration.statistics import Observer, Statistics

EIGHT_BITS = Options(levels=255, percentile=99.0, symmetric=False)


def learn(*samples: np.ndarray) -> Statistics:
    observer = Observer(1 << 20)
    for sample in samples:
        assert observer.add(sample.astype(np.float32))
    return observer.result()


@given(st.integers(0, 10_000), st.sampled_from(sorted(METHODS)), st.floats(-3, 3), st.booleans())
def test_no_method_leaves_the_extrema(seed: int, method: str, shift: float, symmetric: bool) -> None:
    draw = np.random.default_rng(seed)
    learned = learn(*(draw.normal(size=500) * 2.0 ** draw.integers(-8, 8) + shift for _ in range(3)))
    options = Options(levels=255, percentile=99.0, symmetric=symmetric)
    low, high = METHODS[method](learned, options)
    assert min(learned.low, 0.0) <= low <= high <= max(learned.high, 0.0)


def test_minmax_takes_the_extrema_and_average_the_mean_of_each_samples() -> None:
    learned = learn(np.array([-1.0, 4.0]), np.array([-3.0, 2.0]))
    assert METHODS["minmax"](learned, EIGHT_BITS) == (-3.0, 4.0)
    assert METHODS["average"](learned, EIGHT_BITS) == (-2.0, 3.0)


@pytest.mark.parametrize("share", [90.0, 99.0, 99.9, 100.0])
def test_percentile_agrees_with_numpy_within_three_bins(share: float) -> None:
    values = np.random.default_rng(3).normal(size=200_000)
    learned = learn(values)
    low, high = METHODS["percentile"](learned, Options(levels=255, percentile=share, symmetric=False))
    wanted = np.percentile(values.astype(np.float32), [(100 - share) / 2, 100 - (100 - share) / 2])
    np.testing.assert_allclose([low, high], wanted, atol=3 * learned.width)


def test_mse_clips_an_outlier_that_costs_more_resolution_than_it_is_worth() -> None:
    values = np.append(np.random.default_rng(4).normal(size=100_000), 60.0)
    _, high = METHODS["mse"](learn(values), EIGHT_BITS)
    assert 15.0 < high < 60.0


def test_mse_beats_minmax_in_what_it_minimises() -> None:
    values = np.random.default_rng(5).laplace(size=100_000).astype(np.float32)
    learned = learn(values)

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        return float(np.mean((np.clip(np.rint((values - low) / step), 0, 255) * step + low - values) ** 2))

    assert error(*METHODS["mse"](learned, EIGHT_BITS)) < 0.9 * error(*METHODS["minmax"](learned, EIGHT_BITS))


def test_entropy_is_not_led_astray_by_the_zeros_behind_a_relu() -> None:
    values = np.maximum(np.random.default_rng(6).normal(size=200_000), 0)
    values[:150_000] = 0.0
    _, high = METHODS["entropy"](learn(values), EIGHT_BITS)
    assert high > 0.5 * values.max()


def test_a_misspelt_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as refusal:
        METHODS.pick("percentil", where="quantize.calib_method")
    assert str(refusal.value) == (
        "quantize.calib_method: expected a calibration method: average, entropy, minmax, mse, percentile, "
        "found 'percentil'\nfix: did you mean 'percentile'? choose one of those listed"
    )
