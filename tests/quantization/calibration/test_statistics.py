"""What one pass learns does not depend on order or shards, and loses no count."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from forge_pipeline.quantization.calibration.statistics import (
    BINS,
    Observer,
    Statistics,
    coarsen,
    count_values,
    span_exponent,
)
from tests.support.sums import assert_close

values = arrays.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=True)
)
samples = st.lists(values, min_size=1, max_size=6)


def learn(batches: list[np.ndarray], limit: int = 1 << 20) -> Statistics:
    observer = Observer(limit)
    for batch in batches:
        assert observer.add(batch)
    return observer.result()


def same(one: Statistics, other: Statistics) -> bool:
    fields = ("count", "low", "high", "low_sum", "high_sum", "exponent")
    equal = all(getattr(one, field) == getattr(other, field) for field in fields)
    return equal and bool((one.histogram == other.histogram).all())


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(batches: list[np.ndarray], random: object) -> None:
    shuffled = list(batches)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert same(learn(batches), learn(shuffled))


@given(samples, samples)
def test_shards_merge_to_what_one_pass_learns(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    merged = learn(first).merge(learn(second))
    assert same(merged, learn(first + second))
    assert same(merged, learn(second).merge(learn(first)))


@given(samples)
def test_the_histogram_counts_every_value_once(batches: list[np.ndarray]) -> None:
    learned = learn(batches)
    assert learned.histogram.sum() == sum(batch.size for batch in batches)
    assert (learned.histogram >= 0).all()
    assert (np.diff(np.cumsum(learned.histogram)) >= 0).all()


@given(values)
def test_every_value_lies_in_its_bin(batch: np.ndarray) -> None:
    learned = learn([batch])
    edges = learned.edges
    exact, _ = np.histogram(batch.astype(np.float64), edges)
    # numpy closes the last bin on the right, ours is half open: no value reaches the last edge
    assert batch.max() < edges[-1]
    assert (exact == learned.histogram).all()


@given(values, st.integers(1, 20))
def test_a_coarser_histogram_is_what_counting_coarsely_gives(batch: np.ndarray, doublings: int) -> None:
    exponent = span_exponent(float(batch.min()), float(batch.max()))
    fine = count_values(batch, exponent)
    assert (coarsen(fine, doublings) == count_values(batch, exponent + doublings)).all()


@given(samples)
def test_the_average_is_the_mean_of_each_samples_extrema(batches: list[np.ndarray]) -> None:
    low, high = learn(batches).average
    assert_close(low, np.mean([batch.min() for batch in batches], dtype=np.float64), within=1e-6)
    assert_close(high, np.mean([batch.max() for batch in batches], dtype=np.float64), within=1e-6)


def test_extrema_see_every_value_when_the_histogram_takes_a_part() -> None:
    batch = np.zeros(100_000, np.float32)
    batch[77_777], batch[3] = 5.0, -7.0
    learned = learn([batch], limit=100)
    assert (learned.low, learned.high) == (-7.0, 5.0)
    assert 0 < learned.histogram.sum() <= 101


def test_a_value_that_is_not_finite_is_refused_and_leaves_no_trace() -> None:
    observer = Observer(10)
    for bad in (np.nan, np.inf, -np.inf):
        assert not observer.add(np.array([0.0, bad], np.float32))
    assert observer.empty


def test_the_histogram_has_a_fixed_size() -> None:
    assert learn([np.arange(100_000, dtype=np.float32)]).histogram.shape == (BINS,)
