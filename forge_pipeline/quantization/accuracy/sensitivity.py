"""Which layers bear integers badly, and how few of them must stay in float to keep a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forge_pipeline.errors import ConfigError, VerificationError
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.accuracy.search import Candidate
from forge_pipeline.quantization.static import Quantized

QUICK = 16  # probes that rank the layers; the budget itself is checked on all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The model within the budget, its loss in points, the layers put back to float, and the SQNR that ranked them."""

    candidate: Candidate
    written: Quantized
    drop: float
    kept: tuple[str, ...]
    sensitivity: dict[str, float]


def sensitivity(candidate: Candidate, evaluator: Evaluator) -> dict[str, float]:
    """Return, for each integer layer, the SQNR in dB when it alone computes in integers; the worst first."""
    quick = replace(evaluator, probes=evaluator.probes[:QUICK], answers=evaluator.answers[:QUICK])
    layers = candidate.plan.products
    found = {}
    for name in layers:
        others = tuple(other for other in layers if other != name)
        found[name] = quick.sqnr(_keeping(candidate, others).write().model)
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def within(candidate: Candidate, evaluator: Evaluator, budget: float) -> Mixed:
    """Keep as few of the most sensitive layers in float as bring the loss of top-1 within ``budget`` points.

    The number is found by bisection. Raises ConfigError where the model does not classify, and VerificationError where
    nothing but the float model keeps the budget.
    """
    written = candidate.write()
    drop = evaluator.drop(written.model)
    if drop is None:
        raise ConfigError(
            where="quantize.max_drop",
            expected="a model whose first output is [batch, classes], to count top-1 on",
            found="an output of another shape",
            fix="set quantize.max_drop=null, and name layers in quantize.keep_float",
        )
    if drop <= budget:
        return Mixed(candidate=candidate, written=written, drop=drop, kept=(), sensitivity={})
    ranking = sensitivity(candidate, evaluator)
    order = tuple(ranking)
    best: Mixed | None = None
    low, high = 1, len(order) - 1
    while low <= high:
        count = (low + high) // 2
        chosen = _keeping(candidate, order[:count])
        written = chosen.write()
        drop = evaluator.drop(written.model) or 0.0
        if drop <= budget:
            best = Mixed(candidate=chosen, written=written, drop=drop, kept=order[:count], sensitivity=ranking)
            high = count - 1
        else:
            low = count + 1
    if best is None:
        raise VerificationError(
            where="quantize.max_drop",
            expected=f"a loss of at most {budget:g} points with some layer in integers",
            found=f"more, with {order[-1]!r} alone in integers" if len(order) > 1 else "more",
            fix="allow a larger quantize.max_drop, calibrate with more samples, or choose quantize=none",
        )
    return best


def _keeping(candidate: Candidate, layers: tuple[str, ...]) -> Candidate:
    kept = (*candidate.config.keep_float, *layers)
    return replace(candidate, config=replace(candidate.config, keep_float=kept))
