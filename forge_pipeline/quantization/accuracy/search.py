"""Accuracy tools, each tried on the probes and kept only where it helps.

A tool turns the float network into another of the same function (or, for bias correction, one whose quantized form
is closer to it). Every result is written in integers and measured against the float model's own answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forge_pipeline.quantization.accuracy.bias_correction import bias_corrected
from forge_pipeline.quantization.accuracy.equalize import equalized
from forge_pipeline.quantization.accuracy.split_channels import split
from forge_pipeline.quantization.accuracy.trial import Trial
from forge_pipeline.quantization.accuracy.weight_rounding import rounded
from forge_pipeline.quantization.calibration.observe import observe
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.calibration.range_methods import METHODS, Options
from forge_pipeline.quantization.calibration.statistics import Statistics
from forge_pipeline.quantization.cross_cpu_agreement import outward
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.network import Network
from forge_pipeline.quantization.plan import Plan, make_plan
from forge_pipeline.quantization.settings import Config, Method
from forge_pipeline.quantization.static import Quantized, Scheme, Steps, quantize_static
from forge_pipeline.registry import Registry

MARGIN = 0.1  # dB: what less gains is noise of the probes
SAME = 1e-3  # relative change of a value's extrema below which the statistics of the whole data are kept
FALLBACK = "mse"  # what `auto` is before it is chosen
CANDIDATES: tuple[Method, ...] = ("minmax", "mse", "percentile", "entropy", "average")  # at a tie the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A float network, what is known of its activations, and how it is to be written in integers."""

    network: Network
    statistics: Mapping[str, Statistics]
    scheme: Scheme
    config: Config
    steps: Steps = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """Where integers go."""
        return make_plan(self.network, self.config.keep_float)

    def write(self) -> Quantized:
        """Return the network in integers. Raises DataError and ModelError."""
        plan = self.plan
        return quantize_static(self.network, plan, self._spans(plan), self.scheme, self.steps)

    def _spans(self, plan: Plan) -> dict[str, tuple[float, float]]:
        """Return the range of each scale: the union over the values that share it, rounded so that CPUs agree."""
        method = METHODS[self.config.calib_method if self.config.calib_method != "auto" else FALLBACK]
        levels = INTEGERS[self.config.activation_dtype].levels
        options = Options(levels=levels, percentile=self.config.percentile, symmetric=self.config.symmetric)
        spans = {}
        for leader, members in plan.groups().items():
            ends = [method(self.statistics[name], options) for name in members]
            spans[leader] = outward(min(low for low, _ in ends), max(high for _, high in ends))
        return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """The best candidate, its integer form, its SQNR in dB on the probes, and what each tool did."""

    candidate: Candidate
    written: Quantized
    sqnr: float
    log: dict[str, dict[str, Any]]


def improved(start: Candidate, trial: Trial) -> Improved:
    """Choose the method where it is `auto`, then try each tool of the configuration in turn."""
    best = _measured(start, trial, start.config.calib_method)
    if start.config.calib_method == "auto":
        best = _logged(best, "calib_method", {"chosen": best.candidate.config.calib_method, "db": round(best.sqnr, 2)})
    for name in (name for name in TOOLS if name in start.config.improve):
        changed = TOOLS[name](best.candidate, trial.probes)
        if changed is None:
            best = _logged(best, name, {"kept": False, "why": "nothing to do"})
            continue
        # other activations may want another method; a tool that leaves them as they were keeps the one it met
        new_ranges = changed.statistics is not best.candidate.statistics
        found = _measured(changed, trial, start.config.calib_method if new_ranges else changed.config.calib_method)
        entry = {
            "kept": found.sqnr > best.sqnr + MARGIN,
            "before_db": round(best.sqnr, 2),
            "after_db": round(found.sqnr, 2),
            "calib_method": found.candidate.config.calib_method,
        }
        best = _logged(replace(found, log=best.log) if entry["kept"] else best, name, entry)
    return best


def _measured(candidate: Candidate, trial: Trial, method: Method) -> Improved:
    """Write and measure the candidate with ``method``, or with the best one where that is `auto`."""
    tried = []
    for name in CANDIDATES if method == "auto" else (method,):
        chosen = replace(candidate, config=replace(candidate.config, calib_method=name))
        written = chosen.write()
        tried.append(Improved(candidate=chosen, written=written, sqnr=trial.sqnr(written.model), log={}))
    return max(tried, key=lambda item: item.sqnr)


def _logged(best: Improved, name: str, entry: dict[str, Any]) -> Improved:
    return replace(best, log={**best.log, name: entry})


def _split(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    if candidate.scheme.weights.per_channel:
        return None  # every channel has a scale of its own already
    changed = split(candidate.network)
    return None if changed is None else _restated(candidate, changed, probes)


def _equalize(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    changed = equalized(candidate.network, probes, per_channel=candidate.scheme.weights.per_channel)
    return None if changed is None else _restated(candidate, changed, probes)


def _round_weights(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    steps = rounded(candidate.network, candidate.plan, candidate.scheme.weights, probes)
    return None if steps is None else replace(candidate, steps=steps)


def _correct_bias(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    changed = bias_corrected(candidate.network, candidate.plan, candidate.scheme.weights, probes, candidate.steps)
    return None if changed is None else replace(candidate, network=changed)


TOOLS: Registry[Callable[[Candidate, Sequence[Probe]], Candidate | None]] = Registry(
    "accuracy tool",
    {"split": _split, "equalize": _equalize, "round_weights": _round_weights, "correct_bias": _correct_bias},
)


def _restated(candidate: Candidate, changed: Network, probes: Sequence[Probe]) -> Candidate:
    """Give the changed network statistics: those of the whole data where a value is the same, else of the probes."""
    feeds = [probe.feed for probe in probes]
    after = observe(changed.model, tuple(make_plan(changed).values), feeds, 1 << 20)
    known = [name for name in after if name in candidate.statistics]
    before = observe(candidate.network.model, known, feeds, 1 << 20)
    statistics = {
        name: candidate.statistics[name] if name in before and _same(before[name], found) else found
        for name, found in after.items()
    }
    return replace(candidate, network=changed, statistics=statistics)


def _same(one: Statistics, other: Statistics) -> bool:
    size = max(one.high, -one.low)
    return abs(one.low - other.low) <= SAME * size and abs(one.high - other.high) <= SAME * size
