"""How fast an artifact is where it was run: times, the slowest kernels and their layers, and the machine's bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from forge_pipeline.data import Feed
from forge_pipeline.errors import ForgeError
from forge_pipeline.evaluation.results import Value, rounded
from forge_pipeline.target import HOST

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.runners.artifact import Artifact
    from forge_pipeline.runners.contract import Facts
    from forge_pipeline.stages.generation import Generation
    from forge_runtime.profile import KernelTime

KERNELS = 20
"""How many calls of kernels are told, those that take most time."""


def speed_of(
    artifact: Artifact,
    feeds: Sequence[Feed],
    machine: str,
    layers: Mapping[str, Sequence[Sequence[str]]],
    calls: Generation | None,
) -> dict[str, Any]:
    """Return times, memory, the slowest kernels and the fallbacks' part, as far as they are known where it was run.

    They are of the last of ``feeds``; of ``calls``, of a token behind a prompt, and times of the prompt beside them.
    """
    if artifact.model is None:
        return {}
    if artifact.is_emulated:
        return {"not_timed": f"{artifact.where}: an emulator's time is not the target's"}
    is_here = artifact.where == HOST
    feeds = list(feeds) if calls is None else [calls.asked(feed) for feed in feeds]
    facts = dict(artifact.facts(feeds))
    if calls is not None:
        facts |= _rates(facts, artifact.facts(feeds[:1]) if is_here else {}, calls.counts)
    told = {name: rounded(value) if isinstance(value, float) else value for name, value in facts.items()}
    kernels = artifact.profile(feeds)
    slow = [kernel for kernel in kernels if kernel.is_fallback]
    shares = {
        "kernels": [_row(kernel, layers.get(kernel.name, ())) for kernel in kernels[:KERNELS]],
        "fallback_time_share": rounded(sum(kernel.share for kernel in slow)),
        "slowest_fallback": slow[0].name if slow else None,
    }
    return {**told, "machine": machine if is_here else artifact.where, **(shares if is_here else {})}


def _rates(token: Facts, prompt: Facts, counts: Sequence[int]) -> dict[str, Value]:
    """Return how many tokens a second there are, of a prompt and behind it."""
    last = counts[min(1, len(counts) - 1)]
    rates: dict[str, Value] = {"prompt_tokens": counts[0]}
    for word, facts, count in (("", token, last), ("prompt_", prompt, counts[0])):
        median = facts.get("latency_median_ms")
        if isinstance(median, float) and median > 0:
            rates[f"{word}tokens_per_second"] = 1000 * count / median
    if "latency_median_ms" in prompt:
        rates["prompt_median_ms"] = prompt["latency_median_ms"]
    return rates


def _row(kernel: KernelTime, places: Sequence[Sequence[str]]) -> dict[str, Any]:
    layers = places[kernel.place] if places and kernel.place is not None else ()
    times = {"milliseconds": rounded(kernel.milliseconds), "share": rounded(kernel.share)}
    return {"name": kernel.name, "calls": kernel.calls, **times, **({"layers": list(layers)} if layers else {})}


def roofline(
    artifact: Artifact,
    model: ONNXModule,
    feed: Feed,
    speed: Mapping[str, object],
    quiet: Callable[[], AbstractContextManager[None]],
) -> dict[str, Value]:
    """Return what of the least time this machine's peaks explain, or why that is not known."""
    from forge_pipeline.evaluation.work import work_of
    from forge_pipeline.runners.peaks import bound_ms

    least = speed.get("latency_min_ms")
    if not isinstance(least, float):
        return {}
    if artifact.where != HOST:
        return {"no_roofline": f"the peaks of {artifact.where} are not measured"}
    work = work_of(model, feed)
    try:
        with quiet():
            bound = bound_ms(work, least)
    except ForgeError as error:
        return {"no_roofline": f"the peaks of this machine are not known: {error.found}"}
    return {
        "float_operations": work.float_operations,
        "int8_operations": work.byte_operations,
        "bound_ms": rounded(bound),
        "roofline_share": rounded(bound / least),
    }
