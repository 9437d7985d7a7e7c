"""The strict binder takes exactly what was declared, and says what it did not."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    bits: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    method: Literal["minmax", "entropy"]
    per_channel: bool
    rate: float
    samples: int | None
    names: tuple[str, ...]
    limits: dict[str, int]
    inner: Inner


VALID: dict[str, Any] = {
    "method": "minmax",
    "per_channel": True,
    "rate": 0.5,
    "samples": None,
    "names": ["a", "b"],
    "limits": {"x": 1},
    "inner": {"bits": 8},
}


@given(
    method=st.sampled_from(["minmax", "entropy"]),
    per_channel=st.booleans(),
    rate=st.floats(allow_nan=False),
    samples=st.none() | st.integers(),
    names=st.lists(st.text()),
    limits=st.dictionaries(st.text(), st.integers()),
    bits=st.integers(),
)
def test_every_well_typed_section_binds_to_its_own_values(
    method: str,
    per_channel: bool,
    rate: float,
    samples: int | None,
    names: list[str],
    limits: dict[str, int],
    bits: int,
) -> None:
    values = {
        "method": method,
        "per_channel": per_channel,
        "rate": rate,
        "samples": samples,
        "names": names,
        "limits": limits,
        "inner": {"bits": bits},
    }
    bound = dataclasses.asdict(bind(Options, values, where="section"))
    assert bound == {**values, "names": tuple(names)}


@given(value=st.none() | st.text() | st.floats() | st.lists(st.integers()) | st.dictionaries(st.text(), st.none()))
def test_an_integer_option_takes_nothing_but_an_integer(value: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        bind(Inner, {"bits": value}, where="inner")
    assert refusal.value.where == "inner.bits"


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_not_an_integer(value: bool) -> None:
    with pytest.raises(ConfigError):
        bind(Inner, {"bits": value}, where="inner")


def test_an_integer_is_taken_where_a_float_is_declared() -> None:
    bound = bind(Options, {**VALID, "rate": 1}, where="section")
    assert (bound.rate, type(bound.rate)) == (1.0, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"per_chanel": True},
            "section.per_chanel: expected options method, per_channel, rate, samples, names, limits, inner, "
            "found unknown option 'per_chanel'\nfix: did you mean 'per_channel'? correct the name or remove it",
        ),
        (
            {"method": "minmx"},
            "section.method: expected one of minmax, entropy, found 'minmx' (str)\n"
            "fix: did you mean 'minmax'? choose one of those",
        ),
        (
            {"per_channel": "yes"},
            "section.per_channel: expected bool, found 'yes' (str)\nfix: give `section.per_channel` as bool",
        ),
        (
            {"samples": "8"},
            "section.samples: expected int, found '8' (str)\nfix: give `section.samples` as int",
        ),
        (
            {"inner": {"bits": "8"}},
            "section.inner.bits: expected int, found '8' (str)\nfix: give `section.inner.bits` as int",
        ),
        (
            {"names": ["a", 1]},
            "section.names[1]: expected str, found 1 (int)\nfix: give `section.names[1]` as str",
        ),
        (
            {"names": 1},
            "section.names: expected a list of str, found 1 (int)\nfix: give `section.names` as a list of str",
        ),
        (
            {"inner": None},
            "section.inner: expected a section with options bits, found null\nfix: write it as `key: value` lines",
        ),
    ],
)
def test_a_refusal_names_the_place_the_expectation_the_finding_and_the_next_step(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        bind(Options, {**VALID, **change}, where="section")
    assert str(refusal.value) == message


def test_a_missing_option_is_refused_by_name() -> None:
    values = {key: value for key, value in VALID.items() if key != "rate"}
    with pytest.raises(ConfigError, match=r"^section\.rate: expected a value \(float\), found nothing"):
        bind(Options, values, where="section")
