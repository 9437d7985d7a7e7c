"""The search: one trial after another, until there are enough of them; each is on record when it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from forge_pipeline.errors import ForgeError, UsageError
from forge_pipeline.pipeline.deliver import MANIFEST
from forge_pipeline.pipeline.hydra_app import in_quotes
from forge_pipeline.pipeline.search import measures, space
from forge_pipeline.pipeline.search.options import Asked, Options
from forge_pipeline.pipeline.search.proposing import Proposal, propose
from forge_pipeline.pipeline.search.records import Folder, Trial
from forge_pipeline.pipeline.sweep.jobs import said
from forge_pipeline.quantization.plan import PRODUCTS
from forge_pipeline.stages import STAGES
from forge_runtime.text import shown

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Path | BaseException]]
"""Builds what each list of overrides describes; gives its folder, or what went wrong. The number is the first's."""

HOPELESS = 5
"""So many trials fail, and none succeeds, before a search is given up."""


@dataclass(slots=True)
class Search:
    """A search in its folder. ``first`` are the values that the configuration has without a search."""

    options: Options
    asked: Asked
    first: dict[str, str]
    folder: Folder
    launch: Launch
    ranked: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def run(self) -> str:
        """Try until a stop, and return which. Raises ForgeError where no trial can succeed, or show what is wanted."""
        self.trials = self.folder.trials()
        if self.trials:
            print(f"{len(self.trials)} trials are on record in {shown(str(self.folder.path))}", flush=True)
        while True:
            self._judge()
            stop = self._stop()
            if stop is not None:
                return stop
            proposal = self._next()
            if proposal is None:
                return "every configuration was tried"
            trial = self._try(proposal)
            self.folder.add(trial)
            self.trials.append(trial)
            print(self.line(trial), flush=True)

    def _judge(self) -> None:
        """Look at what is on record: what cannot go on ends here."""
        fine = [trial for trial in self.trials if trial.reason is None]
        if fine:
            self.ranked = self.ranked or self._rank(fine[0])
        elif len(self.trials) >= HOPELESS:
            reason = self.trials[-1].reason or ""
            raise ForgeError(
                "search",
                "a trial that succeeds",
                f"{len(self.trials)} that failed, the last: {reason}",
                "mend that first",
            )

    def _stop(self) -> str | None:
        if any(map(self.asked.rules.is_enough, self.trials)):
            return "that is enough: " + ", ".join(map(str, self.asked.rules.enough))
        if len(self.trials) >= self.options.trials:
            return f"{len(self.trials)} trials"
        spent = sum(trial.seconds for trial in self.trials) / 60
        if self.options.minutes is not None and spent >= self.options.minutes:
            return f"{spent:.1f} minutes"
        return None

    def _next(self) -> Proposal | None:
        if not self.trials:
            return Proposal(self.first, {})
        tried = [self.asked.rules.tried(trial) for trial in self.trials]
        return propose(self.options.method, self.asked.space, tried, self.options.seed)

    def _try(self, proposal: Proposal) -> Trial:
        used = {trial.number for trial in self.trials}
        number = next(number for number in count() if number not in used)
        begun = time.monotonic()
        varied = self.overrides(proposal.values)
        rules = self.asked.rules
        jobs = [self._job(number, tag, varied) for tag in rules.targets()]
        results = self.launch(jobs, number * len(jobs))
        places = {tag: result for tag, result in zip(rules.targets(), results, strict=True) if isinstance(result, Path)}
        failures = [result for result in results if not isinstance(result, Path)]
        for failure in failures:
            if not isinstance(failure, ForgeError):
                raise failure
        figures = {tag: measures.read_figures(place) for tag, place in places.items()}
        reason = "; ".join(dict.fromkeys(map(said, failures))) or None
        if reason is None:
            try:
                measures.require(rules.measures(), figures, rules.own, places)
            except ForgeError as missing:
                if not any(trial.reason is None for trial in self.trials):
                    raise
                reason = said(missing)
        return Trial(
            number=number,
            values=proposal.values,
            overrides=varied,
            figures=figures,
            reason=reason,
            seconds=round(time.monotonic() - begun, 3),
            deliveries={tag: str(place.relative_to(self.folder.path)) for tag, place in places.items()},
            built=[name for name in STAGES if any(name in _built(place) for place in places.values())],
            notes=proposal.notes,
        )

    def overrides(self, values: space.Values) -> list[str]:
        """Return the overrides that stand for the values of what varies."""
        found = []
        for item in self.asked.space:
            if item.key not in values:
                continue
            text = values[item.key]
            if item.key == space.KEEP_FLOAT and self.options.keep_float:
                text = f"[{','.join(map(in_quotes, self.ranked[: int(text)]))}]"
            found.append(f"{item.key}={text}")
        return found

    def _job(self, number: int, tag: str, varied: Sequence[str]) -> list[str]:
        device = self.asked.devices.get(tag)
        boards = [] if device is None else [f"device={device}"]
        out = f"out={in_quotes(str(self.folder.place(number)))}"
        return [*self.asked.shared(), *varied, f"target={tag}", *boards, out]

    def _rank(self, trial: Trial) -> list[str]:
        """Return the layers that may stay in float, the one that adds most noise first, as a trial has them."""
        if not self.options.keep_float:
            return []
        place = self.folder.path / trial.deliveries[self.asked.rules.own[0]]
        rows = [row for row in json.loads((place / "layers.json").read_bytes()) if _may_stay(row)]
        if not rows:
            raise UsageError(
                where="hydra.sweeper.keep_float",
                expected="a first trial that quantizes layers, to rank them",
                found=f"one that does not (trial {trial.number})",
                fix="begin with one that does, such as quantize=static",
            )
        return [row["layer"] for row in sorted(rows, key=lambda row: -row["noise_share"])][: self.options.keep_float]

    def line(self, trial: Trial) -> str:
        """Return a line about a trial: figures, whether the bounds hold, values, what was built."""
        rules = self.asked.rules
        varied = " ".join(trial.overrides) or "as it is"
        if trial.reason is not None:
            return shown(f"trial {trial.number}: failed: {trial.reason}  [{varied}]")
        named = dict.fromkeys(rules.measures())
        figures = ", ".join(f"{measure} {measure.of(trial.figures, rules.own):g}" for measure in named)
        over = [bound for bound, share in rules.excess(trial).items() if share > 0]
        verdict = "" if not over else f"  over {', '.join(over)}"
        built = ", ".join(trial.built) or "nothing"
        return shown(f"trial {trial.number}: {figures}{verdict}  [{varied}]  built {built} in {trial.seconds:.1f} s")


def _may_stay(row: dict[str, object]) -> bool:
    return str(row["operator"]).partition("+")[0] in PRODUCTS and bool(row["noise_share"])


def _built(delivery: Path) -> list[str]:
    """Return the stages of a delivery that were no hits, as its manifest says."""
    stages = json.loads((delivery / MANIFEST).read_bytes())["stages"]
    return [stage["stage"] for stage in stages if stage["result"] == "built"]
