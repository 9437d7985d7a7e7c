"""What to try next: a function of what was tried, so that a search that was killed goes on as if it had not been.

Optuna's samplers see all earlier trials each time, in a study that is made for that: nothing but the records of the
trials has to outlive a process. TPE: Bergstra et al., 2011; NSGA-II: Deb et al., 2002; bounds are constraints to both.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.pipeline.search.space import Parameter, Values, inside, size

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study

METHODS = ("grid", "random", "tpe", "nsga2")
POPULATION = 10
"""Trials in a generation of NSGA-II: searches have tens of trials, not thousands."""

STARTING = 5
"""Trials at random before TPE has enough to go by."""

GENERATION = "generation"
"""What NSGA-II notes of a trial, and goes by later."""

ATTEMPTS = 10
"""Proposals of what was tried already, before one is taken at random."""

ENUMERABLE = 100_000
"""Configurations that are listed to find one that was not tried."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial: its values; its objectives, None where it failed; by how much each bound is exceeded; the sampler's."""

    values: Values
    objectives: tuple[float, ...] | None
    excess: dict[str, float]
    notes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to try, and what the sampler wants to be told of it later."""

    values: dict[str, str]
    notes: dict[str, Any]


def check(method: str) -> None:
    """Raise ConfigError for a method that there is not, and for one that takes Optuna where that is not installed."""
    if method not in METHODS:
        near = did_you_mean(str(method), METHODS)
        raise ConfigError("hydra.sweeper.method", "one of " + ", ".join(METHODS), repr(method), f"{near}choose another")
    if method == "grid":
        return
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            where=f"hydra.sweeper.method={method}",
            expected="Optuna 5",
            found=str(error),
            fix="pip install 'forge-pipeline[search]', or choose hydra.sweeper.method=grid",
        ) from error


def propose(method: str, space: Sequence[Parameter], tried: Sequence[Tried], seed: int) -> Proposal | None:
    """Return a configuration that was not tried; None where there is none left. Equal arguments give an equal one."""
    seen = {_key(trial.values) for trial in tried}
    count = size(space)
    if method == "grid":
        return next((Proposal(values, {}) for values in _all(space) if _key(values) not in seen), None)
    if count is not None and count <= ENUMERABLE:
        left = [values for values in _all(space) if _key(values) not in seen]
        if not left:
            return None
    else:
        left = []
    study = _study(method, space, tried)
    rng = random.Random(f"{seed} {len(tried)}")  # noqa: S311  no secret
    for _ in range(ATTEMPTS):
        proposal = _ask(study, method, space, rng.getrandbits(32))
        if _key(proposal.values) not in seen:
            return proposal
    return Proposal(rng.choice(left), {}) if left else proposal


def _key(values: Values) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def _all(space: Sequence[Parameter]) -> Iterator[dict[str, str]]:
    """Yield every configuration, the last parameter first to change."""
    keys = [item.key for item in space]
    for texts in itertools.product(*(item.every() for item in space)):
        yield dict(zip(keys, texts, strict=True))


def _study(method: str, space: Sequence[Parameter], tried: Sequence[Tried]) -> Study:
    """Return a study in which all of ``tried`` that lies in the space has happened."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objectives = next((len(trial.objectives) for trial in tried if trial.objectives is not None), 1)
    study = optuna.create_study(directions=["minimize"] * objectives)
    distributions = {item.key: item.distribution() for item in space}
    for trial in tried:
        values = inside(space, trial.values)
        if values is None or trial.objectives is None:
            continue
        notes = trial.notes if trial.notes.get("method") == method else {}
        study.add_trial(
            optuna.trial.create_trial(
                params=values,
                distributions=distributions,
                values=trial.objectives,
                constraints=dict(trial.excess),
                system_attrs=dict(notes.get("attributes", {})),  # Optuna adds to it
            )
        )
    return study


def _ask(study: Study, method: str, space: Sequence[Parameter], seed: int) -> Proposal:
    import optuna

    study.sampler = _sampler(method, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna's, about what it may change one day
        trial = study.ask({item.key: item.distribution() for item in space})
    attributes = study.trials[trial.number].system_attrs
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    notes = {"method": method, "attributes": {key: attributes[key] for key in sorted(attributes) if GENERATION in key}}
    return Proposal({item.key: item.text(trial.params[item.key]) for item in space}, notes)


def _sampler(method: str, seed: int) -> BaseSampler:
    import optuna

    if method == "tpe":
        return optuna.samplers.TPESampler(n_startup_trials=STARTING, seed=seed, multivariate=True)
    if method == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)
