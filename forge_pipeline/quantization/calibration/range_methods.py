"""From a tensor's statistics to the range that is quantized: one function per method, all from the same pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forge_pipeline.quantization.calibration.statistics import BINS, Statistics
from forge_pipeline.registry import Registry

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``levels``: steps of the integer type (255 for 8 bits); ``percentile``: the share of values kept, in percent."""

    levels: int
    percentile: float
    symmetric: bool


def average(statistics: Statistics, options: Options) -> Range:
    """Mean over samples of each sample's extrema: an outlier in one sample weighs little."""
    return statistics.average


def minmax(statistics: Statistics, options: Options) -> Range:
    """The extrema over all samples: nothing is clipped."""
    return statistics.low, statistics.high


def percentile(statistics: Statistics, options: Options) -> Range:
    """Cut half of ``100 - percentile`` percent at either end."""
    cumulated = np.cumsum(statistics.histogram)
    total = int(cumulated[-1])
    tail = (100.0 - options.percentile) / 200.0
    first = min(int(np.searchsorted(cumulated, tail * total, "right")), BINS - 1)
    last = min(int(np.searchsorted(cumulated, (1.0 - tail) * total, "left")), BINS - 1)
    edges = statistics.edges
    return _within(float(edges[first]), float(edges[last + 1]), statistics)


def entropy(statistics: Statistics, options: Options) -> Range:
    """The cut of |x| with the least Kullback-Leibler divergence between the clipped and the quantized distribution.

    After S. Migacz, "8-bit inference with TensorRT" (GTC 2017). The first bin takes its neighbour's count: the spike
    of exact zeros behind a ReLU would otherwise decide alone, and clip nearly everything.
    """
    magnitudes = _magnitudes(statistics)
    size = len(magnitudes)
    levels = (options.levels + 1) // (1 if statistics.low >= 0 and not options.symmetric else 2)
    if size <= levels:
        return statistics.low, statistics.high
    magnitudes[0] = magnitudes[1]
    stops = np.arange(levels, size + 1, max(1, size // 512))
    cut = int(stops[np.argmin(_divergences(magnitudes, levels, stops))])
    if cut == stops[-1]:
        cut = size
    return _within(-cut * statistics.width, cut * statistics.width, statistics)


def mse(statistics: Statistics, options: Options) -> Range:
    """The range with the least expected squared error of rounding and clipping, by search over both ends."""
    centres = (statistics.edges[:-1] + statistics.edges[1:]) / 2
    counts = statistics.histogram.astype(np.float64)
    centres, counts = centres[counts > 0], counts[counts > 0]
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)

    def errors(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:  # columns of candidates
        span = 2 * np.maximum(-low, high) if options.symmetric else high - low
        rounded = (span / options.levels) ** 2 / 12
        beyond = np.maximum(centres - high, 0.0) + np.maximum(low - centres, 0.0)
        summed: NDArray[np.float64] = (np.where(beyond > 0, beyond**2, rounded) * counts).sum(axis=1)
        return summed

    shares = np.linspace(1.0, 0.3, 71)[:, np.newaxis]  # 1.0 first: at equal error nothing is clipped
    highs, lows = high * shares, low * shares
    for _ in range(2):  # one end at a time, twice: each depends on the step that the other allows
        high = float(highs[np.argmin(errors(np.full_like(highs, low), highs)), 0])
        low = float(lows[np.argmin(errors(lows, np.full_like(lows, high))), 0])
    return low, high


METHODS: Registry[Callable[[Statistics, Options], Range]] = Registry(
    "calibration method",
    {"average": average, "minmax": minmax, "percentile": percentile, "entropy": entropy, "mse": mse},
)


def _within(low: float, high: float, statistics: Statistics) -> Range:
    return max(low, statistics.low), min(high, statistics.high)


def _magnitudes(statistics: Statistics) -> NDArray[np.float64]:
    """The histogram of |x|, up to the largest magnitude seen."""
    half = BINS // 2
    folded = (statistics.histogram[half:] + statistics.histogram[:half][::-1]).astype(np.float64)
    used = int(np.ceil(max(-statistics.low, statistics.high) / statistics.width))
    return folded[: max(used, 1)]


def _divergences(magnitudes: NDArray[np.float64], levels: int, stops: NDArray[np.int64]) -> NDArray[np.float64]:
    """D(P || Q) of each of ``stops``: P is the histogram clipped at that bin, Q its quantization to ``levels`` steps.

    Within a step Q is the same in all bins that are not empty, so that sums over bins are differences of running sums.
    """
    total = magnitudes.sum()
    sums = np.concatenate([[0.0], np.cumsum(magnitudes)])
    filled = np.concatenate([[0], np.cumsum(magnitudes > 0)])
    negentropies = np.concatenate([[0.0], np.cumsum(_negentropy(magnitudes / total))])
    bounds = np.arange(levels + 1) * stops[:, np.newaxis] // levels
    masses, occupied = np.diff(sums[bounds]), np.diff(filled[bounds])
    logs = np.log(np.maximum(masses / np.maximum(occupied, 1) / np.maximum(sums[stops], 1e-30)[:, np.newaxis], 1e-9))
    last, clipped = magnitudes[stops - 1] / total, (total - sums[stops]) / total
    own = negentropies[stops - 1] + _negentropy(last + clipped)
    beyond = clipped * np.where(last > 0, logs[:, -1], np.log(1e-9))
    divergences: NDArray[np.float64] = own - (masses / total * logs).sum(axis=1) - beyond
    return divergences.round(9)  # CPUs round logarithms differently


def _negentropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """x log x, 0 at 0."""
    terms: NDArray[np.float64] = shares * np.log(np.where(shares > 0, shares, 1.0))
    return terms
