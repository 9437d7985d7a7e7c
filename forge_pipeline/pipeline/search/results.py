"""What came of a search, in its folder: all trials as JSON and CSV, and the choice as an experiment."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import asdict

from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.search import experiment
from forge_pipeline.pipeline.search.choosing import Rules
from forge_pipeline.pipeline.search.measures import FIGURES
from forge_pipeline.pipeline.search.options import CONF
from forge_pipeline.pipeline.search.records import Trial, write_json
from forge_pipeline.pipeline.search.search import Search
from forge_pipeline.report.sweep import Failure

RESULTS, TABLE, BEST = "results.json", "trials.csv", "best.yaml"


def write(search: Search, groups: Collection[str], finals: Sequence[Trial]) -> list[Trial]:
    """Write what is known so far, and return the front, the best trial first.

    ``groups`` are the configuration's; of ``finals`` comes the choice. Raises ForgeError.
    """
    rules, folder = search.asked.rules, search.folder.path
    front = rules.front(finals)
    record = {
        "format": 1,
        "method": search.options.method,
        "want": list(map(str, rules.want)),
        "hold": list(map(str, rules.hold)),
        "targets": list(rules.targets()),
        "trials": [{**asdict(trial), "holds": rules.holds(trial)} for trial in search.trials],
        "timed_again": {trial.number: trial.figures for trial in _again(search, finals)},
        "front": [trial.number for trial in front],
        "best": front[0].number if front else None,
    }
    write_json(folder / RESULTS, record)
    write_atomically(folder / TABLE, _table(search.trials, rules).encode())
    if not front:
        (folder / BEST).unlink(missing_ok=True)
        return []
    content = _experiment(search, front[0], groups).encode()
    write_atomically(folder / BEST, content)
    if search.options.experiment is not None:
        write_atomically(CONF / "experiment" / f"{search.options.experiment}.yaml", content)
    return front


def _experiment(search: Search, best: Trial, groups: Collection[str]) -> str:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    rules = search.asked.rules
    chosen = OverridesParser.create().parse_overrides(best.overrides)
    figures = ", ".join(
        f"{measure} {measure.of(best.figures, rules.own):g}" for measure in dict.fromkeys(rules.measures())
    )
    about = [f"Trial {best.number} of a search: {figures}.", f"Searched for {', '.join(rules.own)}."]
    return experiment.text([*experiment.kept(search.asked.base), *chosen], groups, about)


def _table(trials: Sequence[Trial], rules: Rules) -> str:
    """Return the trials as CSV: a row for each, its verdict, its figures by target, then what varied."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    columns = [(figure, tag) for tag in rules.targets() for figure in FIGURES]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "holds", "reason", "seconds", *(f"{figure}@{tag}" for figure, tag in columns), *keys])
    for trial in trials:
        figures = [trial.figures.get(tag, {}).get(figure, "") for figure, tag in columns]
        values = [trial.values.get(key, "") for key in keys]
        rows.writerow([trial.number, rules.holds(trial), trial.reason or "", trial.seconds, *figures, *values])
    return text.getvalue()


def failures(search: Search) -> list[Failure]:
    """Return what is to be said of the trials that failed on the page of all."""
    return [
        Failure(job=f"trial {trial.number}", reason=trial.reason, fix="see what it printed")
        for trial in search.trials
        if trial.reason is not None
    ]


def conclusion(search: Search, stop: str, finals: Sequence[Trial], front: Sequence[Trial]) -> str:
    """Return what is printed at the end. Raises ForgeError where no trial is within the bounds."""
    rules, folder = search.asked.rules, search.folder.path
    failed = sum(trial.reason is not None for trial in search.trials)
    ended = f"search ended: {stop}; {len(search.trials)} trials, {failed} failed; records in {folder}"
    if not front:
        fine = [trial for trial in search.trials if trial.reason is None]
        nearest = min(fine, key=lambda trial: max(0.0, *rules.excess(trial).values()), default=None)
        found = "none that succeeded" if nearest is None else f"none; the nearest is {search.line(nearest)}"
        raise ForgeError(ended, "a trial within " + ", ".join(map(str, rules.hold)), found, "allow more, or vary more")
    again = _again(search, finals)
    turns = [f"timed again, in turn: trials {', '.join(str(trial.number) for trial in again)}"] if again else []
    first = [f"  {search.line(trial)}" for trial in finals if trial.number == 0 and trial != front[0]]
    lines = [ended, *turns, *(["without a search:", *first] if first else []), "best:", f"  {search.line(front[0])}"]
    if len(front) > 1:
        lines += ["also on the Pareto front:", *(f"  {search.line(trial)}" for trial in front[1:])]
    name = search.options.experiment
    place = f"{folder / BEST}; for `dvc repro`, copy it to conf/experiment/NAME.yaml and set matrix.experiment: NAME"
    return "\n".join([*lines, f"choice: {place}" if name is None else f"choice: experiment={name}"])


def _again(search: Search, finals: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that were timed again, if any were."""
    return () if finals is search.trials else finals
