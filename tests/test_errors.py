"""Every failure says where, what was expected, what was found and what to do."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

from forge_pipeline import errors
from forge_pipeline.errors import ConfigError, ForgeError, UsageError, did_you_mean
from forge_pipeline.registry import Registry


def _all_errors(cls: type[ForgeError] = ForgeError) -> list[type[ForgeError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all_errors(child))]


@pytest.mark.parametrize("cls", _all_errors(), ids=lambda cls: cls.__name__)
def test_an_error_survives_a_process_boundary(cls: type[ForgeError]) -> None:
    error = cls("model.path", "a file", "nothing", "give one")
    assert (
        str(pickle.loads(pickle.dumps(error)))
        == str(copy.copy(error))
        == ("model.path: expected a file, found nothing\nfix: give one")
    )


def test_a_usage_error_exits_with_two_and_every_other_with_one() -> None:
    assert UsageError.exit_code == 2
    assert {cls.exit_code for cls in _all_errors() if not issubclass(cls, UsageError)} == {1}


@pytest.mark.parametrize(
    ("name", "hint"),
    [("entropyy", "did you mean 'entropy'? "), ("minmx", "did you mean 'minmax'? "), ("zzz", "")],
)
def test_a_near_miss_gets_a_suggestion_and_a_far_one_none(name: str, hint: str) -> None:
    assert did_you_mean(name, ["minmax", "entropy"]) == hint


def test_a_registry_refuses_an_unknown_name_with_its_choices() -> None:
    methods = Registry("range method", {"minmax": 1, "entropy": 2})
    assert (methods.pick("minmax", where="calibrate.method"), len(methods), list(methods)) == (
        1, 2, ["minmax", "entropy"],
    )  # fmt: skip
    with pytest.raises(ConfigError) as refusal:
        methods.pick("entropie", where="quantize.calib_method")
    assert str(refusal.value) == (
        "quantize.calib_method: expected a range method: entropy, minmax, found 'entropie'\n"
        "fix: did you mean 'entropy'? choose one of those listed"
    )


def test_an_error_outside_its_module_refines_one_inside() -> None:
    importlib.import_module("forge_pipeline.passes.verification.verify")  # brings such errors, whatever ran before
    inside = (errors.__name__, ForgeError.__module__)
    outside = [cls for cls in _all_errors() if cls.__module__ not in inside]
    assert outside
    assert [cls for cls in outside if cls.__base__ is ForgeError] == []
