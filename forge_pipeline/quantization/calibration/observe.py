"""Calibration: one pass over the samples, one sample in memory, statistics for every method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from onnx import ModelProto

from forge_pipeline.data import Feed
from forge_pipeline.errors import DataError
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.calibration.ranges import Ranges
from forge_pipeline.quantization.calibration.statistics import Observer, Statistics
from forge_pipeline.quantization.limits import whole
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.plan import make_plan

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule

Progress = Callable[[int, int], None]


def calibrate(
    model: ONNXModule,
    feeds: Iterable[Feed],
    *,
    total: int,
    histogram_values: int,
    progress: Progress | None = None,
) -> Ranges:
    """Observe every value that quantization may store as integers.

    ``total``: how many feeds there are; ``histogram_values``: how many values of a tensor one sample adds to its
    histogram at most (extrema see all); ``progress`` is called with (feeds done, ``total``).
    Raises DataError where there are no samples or an activation is not finite, ModelError where the model does not run.
    """
    network = Network(prepare(whole(model, "calibrate")))
    statistics = observe(
        network.model, tuple(make_plan(network).values), feeds, histogram_values, total=total, progress=progress
    )
    return Ranges(fingerprint=model.fingerprint, tensors=statistics)


def observe(
    model: ModelProto,
    values: Collection[str],
    feeds: Iterable[Feed],
    histogram_values: int,
    *,
    total: int = 0,
    progress: Progress | None = None,
) -> dict[str, Statistics]:
    """Return the statistics of ``values`` over all ``feeds``. Raises DataError and ModelError."""
    inputs = {value.name for value in model.graph.input}
    computed = [name for name in values if name not in inputs]
    run = Interpreter(model, taps=computed, optimized=True)
    observers = {name: Observer(histogram_values) for name in values}
    done = 0
    for feed in feeds:
        found = {**feed, **run(feed, computed)}
        for name, observer in observers.items():
            if found[name].size and not observer.add(found[name]):
                raise DataError(
                    where=f"calibration sample {done}, value {name!r}",
                    expected="finite activations",
                    found="NaN or infinity, which the model computed from finite inputs",
                    fix="check the model on this sample: it divides by zero or overflows there",
                )
        del found
        done += 1
        if progress is not None:
            progress(done, max(total, done))
    if not done:
        raise DataError("calibration data", "at least one sample", "none", "give samples to calibrate with")
    return {name: observer.result() for name, observer in observers.items() if not observer.empty}
