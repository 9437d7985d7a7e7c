"""The rules: how bounds are read, which trials hold them, which is best, and what an experiment's file says."""

from __future__ import annotations

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.pipeline.search import experiment, measures
from forge_pipeline.pipeline.search.choosing import Rules
from forge_pipeline.pipeline.search.records import Trial


def rules(want: str = "latency_ms,library_kb", hold: str = "accuracy_drop<=0.5", enough: str = "") -> Rules:
    own = ("host", "x86-64/v3")
    return Rules(measures.wanted(want), measures.bounds(hold, "hold"), measures.bounds(enough, "enough"), own)


def trial(number: int, latency: float, size: float, drop: float = 0.0, reason: str | None = None) -> Trial:
    figures = {"latency_ms": latency, "library_kb": size, "accuracy_drop": drop}
    both = {} if reason else {"host": figures, "x86-64/v3": {**figures, "latency_ms": latency / 2}}
    return Trial(number=number, values={}, overrides=[], figures=both, reason=reason, seconds=1.0)


def test_bounds_are_read_with_their_target_before_or_after() -> None:
    read = measures.bounds("[latency_ms<=20@raspberry-pi/5, library_kb@host<=8e3]", "hold")
    assert list(map(str, read)) == ["latency_ms@raspberry-pi/5<=20", "library_kb@host<=8000"]
    assert rules(hold="latency_ms<=20@raspberry-pi/5").targets() == ("host", "x86-64/v3", "raspberry-pi/5")


@pytest.mark.parametrize(
    "text", ["latency_ms", "latency_ms<20", "latency_ms<=x", "<=3", "latency_ms<=1@a@b<=2", "speed<=1"]
)
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        measures.bounds([text], "hold")


def test_an_unknown_figure_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'latency_ms'"):
        measures.wanted("latencyms")


def test_a_figure_without_a_target_is_the_largest_of_all_that_are_searched_for() -> None:
    assert rules().objectives(trial(0, 3.0, 7.0)) == (3.0, 7.0)
    assert rules(want="latency_ms@x86-64/v3").objectives(trial(0, 3.0, 7.0)) == (1.5,)


def test_the_front_is_within_the_bounds_best_first_and_each_on_it_is_least_in_something() -> None:
    trials = [
        trial(0, 3.0, 5.0),
        trial(1, 1.0, 1.0, drop=0.6),
        trial(2, 2.0, 7.0),
        trial(3, 2.0, 7.0),
        trial(4, 4.0, 6.0),
        trial(5, 0.0, 0.0, reason="failed"),
        trial(6, 9.0, 4.0, drop=0.5),
    ]
    assert [found.number for found in rules().front(trials)] == [2, 0, 6]
    assert rules().excess(trials[1]) == {"accuracy_drop<=0.5": pytest.approx(0.2)}


def test_enough_is_within_the_bounds_too() -> None:
    asked = rules(enough="latency_ms<=1")
    assert not asked.is_enough(trial(0, 0.5, 1.0, drop=0.6))
    assert asked.is_enough(trial(0, 0.5, 1.0)) and not asked.is_enough(trial(0, 1.5, 1.0))
    assert not rules().is_enough(trial(0, 0.5, 1.0))


def test_an_experiment_holds_choices_and_values_but_neither_targets_nor_places() -> None:
    given = [
        "experiment=digits",
        "quantize=static",
        "++model.dims={n: 1}",
        "model.path='a b'",
        "target=host",
        "out=x",
        "quantize.keep_float=['a,b']",
    ]
    kept = experiment.kept(OverridesParser.create().parse_overrides(given))
    read = yaml.safe_load(experiment.text(kept, ("experiment", "quantize", "target"), ["of a test"]))
    assert read["defaults"] == ["digits", {"override /quantize": "static"}, "_self_"]
    assert read == {
        "defaults": read["defaults"],
        "model": {"dims": {"n": 1}, "path": "a b"},
        "quantize": {"keep_float": ["a,b"]},
    }


@pytest.mark.parametrize("given", ["~quantize", "encrypt.secret=hunter2"])
def test_what_no_file_should_hold_is_refused(given: str) -> None:
    with pytest.raises(UsageError) as refused:
        experiment.kept(OverridesParser.create().parse_overrides([given]))
    assert "hunter2" not in str(refused.value)
