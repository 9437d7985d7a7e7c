"""Text of others is shown in one printable line of bounded length."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.errors import ForgeError
from forge_runtime.text import shown

COMMANDS = "\0\a\b\t\n\r\x1b\x7f\x85\x9b\u00ad\u200b\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff\ufeff\ufffe"


@given(st.text(st.characters(), max_size=300), st.integers(min_value=1, max_value=200))
def test_any_text_becomes_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    line = shown(text, limit)
    assert line.isprintable()
    assert len(line) <= limit
    line.encode()


def test_every_character_that_is_not_printable_is_escaped() -> None:
    for start in range(0, sys.maxunicode + 1, 1000):
        found = "".join(c for c in map(chr, range(start, min(start + 1000, sys.maxunicode + 1))) if not c.isprintable())
        line = shown(found, 20_000)
        assert line.isprintable()
        assert line.isascii()
    assert shown(COMMANDS[:6]) == r"\x00\x07\x08\t\n\r"
    assert shown("a\u202eb\ud800") == r"a\u202eb\ud800"


def test_what_is_printable_stays_as_it_is() -> None:
    assert shown("Größe 模型 'a/b' \\ \N{BULLET}") == "Größe 模型 'a/b' \\ \N{BULLET}"


def test_a_long_text_loses_its_middle_and_says_its_length() -> None:
    line = shown("a" * 50_000 + "m" * 48_999 + " " + "z" * 1_000, 300)
    assert line.startswith("aaaa")
    assert line.endswith("zzzz")
    assert " 100,000 characters " in line
    assert len(line) == 300


@pytest.mark.parametrize("size", [3000, 40_000, 2_000_000])
def test_no_cut_shows_half_of_a_secret(size: int) -> None:
    for secret in ("https://me:hunter2@host/", "https://host/?key=" + "hunter2" * 5000):
        for place in (0, size // 2, 800, 16_370, size - 16_390, size - 800):
            text = "x" * place + secret + "y" * (size - place)
            assert "hunter2" not in shown(text)
            assert "hunter2" not in shown(f"{text} {text[::-1]}")
    assert shown("x://" * size).startswith("x:")


def test_a_short_place_keeps_the_beginning() -> None:
    assert shown("input_of_a_long_name", 10) == "input_of_\N{HORIZONTAL ELLIPSIS}"


@pytest.mark.parametrize("place", range(4))
def test_an_error_of_any_length_is_two_printable_lines_that_end_with_what_to_do(place: int) -> None:
    pieces = ["model.path", "a file", "none", "give one"]
    pieces[place] = COMMANDS * 5000 + "https://me:hunter2@host"
    said = str(ForgeError(*pieces))
    first, second = said.split("\n")
    assert first.isprintable()
    assert second.isprintable()
    assert second.startswith("fix: ")
    assert len(said) <= 2100
    assert "hunter2" not in said


def test_a_tools_message_of_several_lines_is_told_in_one() -> None:
    assert (
        str(ForgeError("a", "b", "bad node\n==> Context: c", "d\n"))
        == "a: expected b, found bad node ==> Context: c\nfix: d "
    )
