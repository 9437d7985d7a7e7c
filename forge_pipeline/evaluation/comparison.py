"""One pass over the evaluation data through the float, the quantized and the compiled model side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.errors import VerificationError
from forge_pipeline.evaluation.noise import Noise
from forge_pipeline.evaluation.pairing import paired
from forge_pipeline.evaluation.scores import Score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.data import Samples

Feed = dict[str, "NDArray[Any]"]
Model = Callable[[Feed], Mapping[str, "NDArray[Any]"]]


class Recorded:
    """A model whose results on some feeds are known: it is not run for these again."""

    def __init__(
        self, model: Model, feeds: Samples | Sequence[Feed], results: Sequence[Mapping[str, NDArray[Any]]]
    ) -> None:
        self._model = model
        self._known = list(zip(feeds, results, strict=True)) if results else []

    def __call__(self, feed: Feed) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name."""
        known = next((found for other, found in self._known if other is feed), None)
        return self._model(feed) if known is None else known


NONE: Final[Mapping[str, int]] = MappingProxyType({})
FLOAT, QUANTIZED, COMPILED = "float", "quantized", "compiled"
BASE = {QUANTIZED: FLOAT, COMPILED: QUANTIZED}
"""What each model is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``scores`` by model. ``noise``: by model and output, quantized against float, compiled against quantized.

    ``farthest`` is the index of the feed on which compiled and quantized model are farthest apart.
    """

    scores: Mapping[str, float]
    noise: Mapping[str, Mapping[str, Noise]]
    samples: int
    farthest: int

    def drop(self, higher_is_better: bool) -> float:
        """Return the largest loss against the float model, in the metric's unit; negative for a gain."""
        sign = 1.0 if higher_is_better else -1.0
        return max(sign * (self.scores[FLOAT] - value) for name, value in self.scores.items() if name != FLOAT)


def compare(
    models: Mapping[str, Model],
    outputs: Sequence[str],
    feeds: Samples | Sequence[Feed],
    labels: NDArray[Any] | None,
    new_score: Callable[[], Score],
    limit: int | None,
    counted: Mapping[str, int] = NONE,
) -> Comparison:
    """Run ``models`` (float, quantized and perhaps compiled) on feeds until ``limit`` samples are through.

    ``counted`` has the axes along which outputs have as many rows as a model finds: they are compared in pairs
    (`pairing`). ``labels`` are in the order of the samples, as many for each feed. Raises DataError where they do not
    fit the metric, and VerificationError for a metric that is no number.
    """
    scores = {name: new_score() for name in models}
    noise = {name: {output: Noise() for output in outputs} for name in models if name in BASE}
    share = 0 if labels is None else len(labels) // len(feeds)
    done, distances = 0, [0.0]
    for index, feed in enumerate(taken(feeds, labels, limit)):
        expected = None if labels is None else labels[index * share : (index + 1) * share]
        results: dict[str, Mapping[str, NDArray[Any]]] = {}
        known: dict[int, Mapping[str, NDArray[Any]]] = {}  # a float model that nothing was quantized in runs once
        for name, model in models.items():
            if id(model) not in known:
                known[id(model)] = model(feed)
            results[name] = _same_shapes(known[id(model)], results, outputs, name, counted)
            wanted, own = results[FLOAT], results[name]
            if scores[name].is_by_value:
                wanted, own = paired(wanted, own, counted)
            scores[name].update(own, expected, wanted)
            if name in noise:
                wanted, own = paired(results[BASE[name]], results[name], counted)
                for output, one in noise[name].items():
                    one.update(wanted[output], own[output])
        if COMPILED in results:
            distances[index:] = [distance(*paired(results[QUANTIZED], results[COMPILED], counted))]
        done += share or _leading(feed)
    return Comparison(
        scores={name: _finite(score.result(), name) for name, score in scores.items()},
        noise=noise,
        samples=done,
        farthest=distances.index(max(distances)),
    )


def distance(reference: Mapping[str, NDArray[Any]], values: Mapping[str, NDArray[Any]]) -> float:
    """Return the power of the noise in the outputs of one feed, as a share of the signal's, summed over the outputs."""
    total = 0.0
    for name, exact in reference.items():
        noise = Noise()
        noise.update(exact, values[name])
        total += noise.ratio
    return total


def taken(feeds: Samples | Sequence[Feed], labels: NDArray[Any] | None, limit: int | None) -> Iterator[Feed]:
    """Yield the feeds until ``limit`` samples are through."""
    share = 0 if labels is None else len(labels) // len(feeds)
    done = 0
    for feed in feeds:
        if limit is not None and done >= limit:
            return
        yield feed
        done += share or _leading(feed)


def _leading(feed: Feed) -> int:
    return next((array.shape[0] for array in feed.values() if array.ndim), 1)


def _same_shapes(
    result: Mapping[str, NDArray[Any]],
    others: Mapping[str, Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    name: str,
    counted: Mapping[str, int],
) -> dict[str, NDArray[Any]]:
    for output in outputs if others else ():
        expected, found = list(others[FLOAT][output].shape), list(result[output].shape)
        if output in counted and len(found) == len(expected):
            found[counted[output]] = expected[counted[output]]
        if expected != found:
            raise VerificationError(
                where=f"output {output!r} of the {name} model",
                expected=f"shape {expected}, as from the float model",
                found=f"shape {list(result[output].shape)}",
                fix="report it with the model: a stage changed what the model computes",
            )
    return {output: result[output] for output in outputs}


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise VerificationError(
            where=f"evaluate, {name} model",
            expected="a metric that is a number",
            found=str(value),
            fix="the outputs hold NaN or infinities: look at layers.json for the first layer that breaks",
        )
    return value
