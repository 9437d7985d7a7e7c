"""The last word on latency: the trials that may be best, timed in turn.

The times of two trials were taken minutes apart, on a machine that did other things meanwhile: what differs by less
than its load does is told apart only by turns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain

from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.bench import Bench, bench
from forge_pipeline.pipeline.console import warn
from forge_pipeline.pipeline.search.records import Trial
from forge_pipeline.pipeline.search.search import Search
from forge_pipeline.pipeline.sweep.jobs import said
from forge_pipeline.stages.artifacts import MODEL_FILES

TIMES = {"latency_ms": "p50_ms", "latency_least_ms": "least_ms"}
"""The figures that are taken again, and their names in `bench`."""

NEAR, MOST = 1.25, 12
"""Within this factor of the least is what may be best; so many trials at most are timed again."""

ROUNDS, RUNS = 7, 100


def timed_again(search: Search) -> list[Trial]:
    """Return the finalists with times that were taken in turn; all trials where no time of this machine matters."""
    rules = search.asked.rules
    timed = {measure for measure in rules.measures() if measure.figure in TIMES}
    named = chain.from_iterable(rules.own if measure.target is None else [measure.target] for measure in timed)
    tags = [tag for tag in dict.fromkeys(named) if tag not in search.asked.devices]
    finalists = _finalists(search)
    if not tags or len(finalists) < 2:
        return search.trials
    asked = Bench(
        device=None, config_dir=None, against=None, runs=RUNS, rounds=ROUNDS, threads=1, size=(), profile=False,
        as_json=True, svg=None,
    )  # fmt: skip
    figures = {trial.number: dict(trial.figures) for trial in finalists}
    for tag in tags:
        places = {
            trial.number: search.folder.path / trial.deliveries[tag] / MODEL_FILES["library"] for trial in finalists
        }
        try:
            rows = json.loads(bench(list(places.values()), asked))["rows"]
        except ForgeError as error:  # sealed, or no library
            warn(f"the times stand as each trial took them: {said(error)}")
            return search.trials
        for number, place in places.items():
            again = {figure: float(f"{rows[str(place)][name]:.6g}") for figure, name in TIMES.items()}
            figures[number][tag] = {**figures[number][tag], **again}
    return [replace(trial, figures=figures[trial.number]) for trial in finalists]


def _finalists(search: Search) -> list[Trial]:
    """Return the front, what is near its best, and the first trial, which shows what the search was good for."""
    rules = search.asked.rules
    good = sorted((trial for trial in search.trials if rules.holds(trial)), key=rules.objectives)
    if not good:
        return []
    least = rules.objectives(good[0])[0]
    near = [trial for trial in good if rules.objectives(trial)[0] <= least * NEAR]
    first = [trial for trial in search.trials[:1] if trial.reason is None]
    chosen = {trial.number: trial for trial in (*first, *rules.front(search.trials), *near)}
    return sorted(list(chosen.values())[:MOST], key=lambda trial: trial.number)
