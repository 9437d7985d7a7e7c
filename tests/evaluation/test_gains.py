"""Factors of rescaled channels: found where most channels have one, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.evaluation.gains import Gains

CHANNELS = 8
SHAPES = {"image": ((2, CHANNELS, 5, 5), True), "series": ((2, 9, CHANNELS), False), "row": ((3, CHANNELS), False)}


def factors(value: np.ndarray, reference: np.ndarray, *, spatial: bool) -> np.ndarray | float:
    gains = Gains(spatial=spatial)
    for exact, near in zip(reference[:, None], value[:, None], strict=True):
        gains.update(exact, near)
    return gains.factors(reference)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_factor_of_each_channel_is_found_under_noise(kind: str) -> None:
    shape, spatial = SHAPES[kind]
    random = np.random.default_rng(1)
    reference = random.standard_normal(shape)
    scale = 2.0 ** random.uniform(-4, 4, [CHANNELS if size == CHANNELS else 1 for size in shape])
    found = factors(reference * scale * (1 + 1e-3 * random.standard_normal(shape)), reference, spatial=spatial)
    assert found == pytest.approx(scale, rel=5e-3)


def test_one_channel_that_is_off_is_noise_and_not_a_factor() -> None:
    reference = np.random.default_rng(2).standard_normal((4, CHANNELS, 3, 3))
    value = reference.copy()
    value[:, 3] *= 0.5
    assert factors(value, reference, spatial=True) == 1.0


def test_rounding_is_no_factor() -> None:
    reference = np.random.default_rng(3).standard_normal((4, CHANNELS, 3, 3))
    assert factors(np.round(reference * 2) / 2, reference, spatial=True) == 1.0


def test_a_channel_without_a_signal_keeps_its_scale() -> None:
    reference = np.random.default_rng(4).standard_normal((4, CHANNELS))
    reference[:, 0] = 0.0
    found = factors(reference * 4.0, reference, spatial=False)
    assert found.tolist() == [[1.0] + [pytest.approx(4.0)] * (CHANNELS - 1)]


def test_values_without_channels_and_unseen_values_have_none() -> None:
    assert factors(np.arange(3.0) * 9, np.arange(3.0), spatial=False) == 1.0
    assert Gains(spatial=True).factors(np.zeros((1, 2, 3))) == 1.0
