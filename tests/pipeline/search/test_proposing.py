"""What is tried next: a function of the records, new each time, and better than chance."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from forge_pipeline.pipeline.search.proposing import METHODS, Tried, propose
from forge_pipeline.pipeline.search.space import Between, Listed, Parameter, inside, size

SPACE: tuple[Parameter, ...] = (
    Listed("quantize.calib_method", ("minmax", "mse", "entropy")),
    Listed("compile.opt_level", ("2", "3", "4"), ordered=True),
    Between("n", 1, 4),
)
HERE = [name for name in METHODS if name == "grid" or importlib.util.find_spec("optuna") is not None]
needs_optuna = pytest.mark.skipif(len(HERE) == 1, reason="no Optuna here: pip install 'forge-pipeline[search]'")
Objective = Callable[[dict[str, str]], tuple[float, ...]]


def searched(method: str, space: tuple[Parameter, ...], objective: Objective, trials: int, seed: int) -> list[Tried]:
    tried: list[Tried] = []
    for _ in range(trials):
        found = propose(method, space, tried, seed)
        if found is None:
            break
        tried.append(
            Tried(found.values, objective(found.values), {"n<=1": float(found.values.get("n", 0)) - 1}, found.notes)
        )
    return tried


def constant(values: dict[str, str]) -> tuple[float, ...]:
    return (1.0,)


@pytest.mark.parametrize("method", HERE)
def test_every_configuration_is_tried_once_and_then_there_is_none(method: str) -> None:
    tried = searched(method, SPACE, constant, 50, 0)
    assert len({frozenset(trial.values.items()) for trial in tried}) == len(tried) == size(SPACE) == 36
    assert all(inside(SPACE, trial.values) is not None for trial in tried)


@pytest.mark.parametrize("method", HERE)
def test_equal_records_give_an_equal_proposal(method: str) -> None:
    one, other = (searched(method, SPACE, constant, 14, 3) for _ in range(2))
    assert one == other
    assert method == "grid" or one != searched(method, SPACE, constant, 14, 4)


@needs_optuna
def test_tpe_comes_nearer_to_the_least_than_chance_does() -> None:
    plane: tuple[Parameter, ...] = (Between("x", 0.0, 1.0), Between("y", 1e-4, 1.0, log=True))

    def distance(values: dict[str, str]) -> tuple[float, ...]:
        return ((float(values["x"]) - 0.3) ** 2 + (float(values["y"]) - 0.01) ** 2,)

    def least(method: str) -> float:
        runs = (searched(method, plane, distance, 30, seed) for seed in range(3))
        return sum(min(distance(trial.values)[0] for trial in run) for run in runs)

    assert least("tpe") < least("random")


@needs_optuna
def test_nsga2_goes_by_the_generations_that_its_records_note() -> None:
    tried = searched("nsga2", SPACE, lambda values: (float(values["n"]), -float(values["n"])), 25, 0)
    generations = [next(iter(trial.notes["attributes"].values())) for trial in tried if trial.notes]
    assert generations == sorted(generations)
    assert {0, 1} <= set(generations)


@needs_optuna
def test_trials_that_failed_or_lie_elsewhere_are_no_obstacle_and_are_not_repeated() -> None:
    failed = Tried({"quantize.calib_method": "mse", "compile.opt_level": "2", "n": "1"}, None, {}, {})
    elsewhere = Tried({"other": "1"}, (1.0,), {}, {})
    tried = [failed, elsewhere]
    for _ in range(35):
        found = propose("tpe", SPACE, tried, 0)
        assert found is not None and found.values != failed.values
        tried.append(Tried(found.values, (1.0,), {}, found.notes))
    assert propose("tpe", SPACE, tried, 0) is None
