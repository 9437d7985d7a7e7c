"""Accuracy tools, each tried on the probes and kept only where it helps.

A tool turns the float network into another of the same function (or, for bias correction, one whose quantized form
is closer to it). Every result is written in integers and measured against the float model's own answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forge_pipeline.quantization.accuracy.bias_correction import correct_bias
from forge_pipeline.quantization.accuracy.equalize import equalize
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.accuracy.split_channels import split
from forge_pipeline.quantization.accuracy.weight_rounding import round_weights
from forge_pipeline.quantization.calibration.observe import observe
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.calibration.range_methods import METHODS, Options
from forge_pipeline.quantization.calibration.statistics import Statistics
from forge_pipeline.quantization.cross_cpu_agreement import outward
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.network import Network
from forge_pipeline.quantization.plan import Plan, make_plan
from forge_pipeline.quantization.settings import Config, Method
from forge_pipeline.quantization.static import IntegerCodes, Quantized, Scheme, quantize_static
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
    codes: IntegerCodes = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """Where integers go."""
        return make_plan(self.network, self.config.keep_float)

    def write(self) -> Quantized:
        """Return the network in integers. Raises DataError and ModelError."""
        plan = self.plan
        return quantize_static(self.network, plan, self._value_ranges(plan), self.scheme, self.codes)

    def _value_ranges(self, plan: Plan) -> dict[str, tuple[float, float]]:
        """Return the range of each scale: the union over the values that share it, rounded so that CPUs agree."""
        method = METHODS[self.config.calib_method if self.config.calib_method != "auto" else FALLBACK]
        levels = INTEGERS[self.config.activation_dtype].levels
        options = Options(levels=levels, percentile=self.config.percentile, symmetric=self.config.symmetric)
        value_ranges = {}
        for leader, members in plan.groups().items():
            ends = [method(self.statistics[name], options) for name in members]
            value_ranges[leader] = outward(min(low for low, _ in ends), max(high for _, high in ends))
        return value_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """The best candidate, its integer form, its SQNR in dB on the probes, and what each tool did."""

    candidate: Candidate
    written: Quantized
    sqnr: float
    log: dict[str, dict[str, Any]]


def improve(start: Candidate, evaluator: Evaluator) -> Improved:
    """Choose the method where it is `auto`, then try each tool of the configuration in turn."""
    best = _measure(start, evaluator, start.config.calib_method)
    if start.config.calib_method == "auto":
        best = _log(best, "calib_method", {"chosen": best.candidate.config.calib_method, "db": round(best.sqnr, 2)})
    for name in (name for name in TOOLS if name in start.config.improve):
        changed = TOOLS[name](best.candidate, evaluator.probes)
        if changed is None:
            best = _log(best, name, {"kept": False, "why": "nothing to do"})
            continue
        # other activations may want another method; a tool that leaves them as they were keeps the one it met
        new_ranges = changed.statistics is not best.candidate.statistics
        found = _measure(changed, evaluator, start.config.calib_method if new_ranges else changed.config.calib_method)
        entry = {
            "kept": found.sqnr > best.sqnr + MARGIN,
            "before_db": round(best.sqnr, 2),
            "after_db": round(found.sqnr, 2),
            "calib_method": found.candidate.config.calib_method,
        }
        best = _log(replace(found, log=best.log) if entry["kept"] else best, name, entry)
    return best


def _measure(candidate: Candidate, evaluator: Evaluator, method: Method) -> Improved:
    """Write and measure the candidate with ``method``, or with the best one where that is `auto`."""
    tried = []
    for name in CANDIDATES if method == "auto" else (method,):
        chosen = replace(candidate, config=replace(candidate.config, calib_method=name))
        written = chosen.write()
        tried.append(Improved(candidate=chosen, written=written, sqnr=evaluator.sqnr(written.model), log={}))
    return max(tried, key=lambda item: item.sqnr)


def _log(best: Improved, name: str, entry: dict[str, Any]) -> Improved:
    return replace(best, log={**best.log, name: entry})


def _split(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    if candidate.scheme.weights.per_channel:
        return None  # every channel has a scale of its own already
    changed = split(candidate.network)
    return None if changed is None else _restate(candidate, changed, probes)


def _equalize(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    changed = equalize(candidate.network, probes, per_channel=candidate.scheme.weights.per_channel)
    return None if changed is None else _restate(candidate, changed, probes)


def _round_weights(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    codes = round_weights(candidate.network, candidate.plan, candidate.scheme.weights, probes)
    return None if codes is None else replace(candidate, codes=codes)


def _correct_bias(candidate: Candidate, probes: Sequence[Probe]) -> Candidate | None:
    changed = correct_bias(candidate.network, candidate.plan, candidate.scheme.weights, probes, candidate.codes)
    return None if changed is None else replace(candidate, network=changed)


TOOLS: Registry[Callable[[Candidate, Sequence[Probe]], Candidate | None]] = Registry(
    "accuracy tool",
    {"split": _split, "equalize": _equalize, "round_weights": _round_weights, "correct_bias": _correct_bias},
)


def _restate(candidate: Candidate, changed: Network, probes: Sequence[Probe]) -> Candidate:
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
