"""Which trials are good: those within the bounds, the best of them, and those that no other one is better than."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forge_pipeline.pipeline.search.measures import Bound, Measure
from forge_pipeline.pipeline.search.proposing import Tried
from forge_pipeline.pipeline.search.records import Trial


@dataclass(frozen=True, slots=True)
class Rules:
    """What is wanted least, what must hold, what is ``enough`` to stop; ``own``: the targets that are searched for."""

    want: tuple[Measure, ...]
    hold: tuple[Bound, ...]
    enough: tuple[Bound, ...]
    own: tuple[str, ...]

    def measures(self) -> Iterable[Measure]:
        """Return all measures that a trial must have."""
        return (*self.want, *(bound.measure for bound in (*self.hold, *self.enough)))

    def targets(self) -> tuple[str, ...]:
        """Return all targets that a trial builds for."""
        named = (measure.target for measure in self.measures() if measure.target is not None)
        return tuple(dict.fromkeys((*self.own, *named)))

    def objectives(self, trial: Trial) -> tuple[float, ...]:
        """Return what is wanted least of a trial that did not fail."""
        return tuple(measure.of(trial.figures, self.own) for measure in self.want)

    def excess(self, trial: Trial) -> dict[str, float]:
        """Return for each bound by how much it is exceeded, as a share of it; 0 or less where it holds."""
        over = {}
        for bound in self.hold:
            share = abs(bound.most) or 1.0
            over[str(bound)] = (bound.measure.of(trial.figures, self.own) - bound.most) / share
        return over

    def holds(self, trial: Trial) -> bool:
        """Tell whether a trial succeeded within all bounds."""
        return trial.reason is None and all(over <= 0 for over in self.excess(trial).values())

    def is_enough(self, trial: Trial) -> bool:
        """Tell whether a trial is all that was asked for."""
        if not self.enough or not self.holds(trial):
            return False
        return all(bound.measure.of(trial.figures, self.own) <= bound.most for bound in self.enough)

    def tried(self, trial: Trial) -> Tried:
        """Return the trial as the sampler learns of it."""
        if trial.reason is not None:
            return Tried(trial.values, None, {}, trial.notes)
        return Tried(trial.values, self.objectives(trial), self.excess(trial), trial.notes)

    def front(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return those within the bounds that none is better than in all that is wanted, the best one first.

        The best is the one with the least of what is named first; among equals, of what is named next, then the
        earlier one.
        """
        good = sorted(
            (trial for trial in trials if self.holds(trial)), key=lambda item: (self.objectives(item), item.number)
        )
        front: list[Trial] = []
        for trial in good:
            mine = self.objectives(trial)
            if not any(_as_good(self.objectives(other), mine) for other in front):
                front.append(trial)
        return front


def _as_good(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
