from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError
from forge_pipeline.runtime.bundle import FOOTER, LINE, MAGIC, PAGE, Library

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NEAR_A_PAGE = st.integers(0, 5).map(lambda size: bytes(range(size))) | st.integers(PAGE - 2, PAGE + 2).map(bytes)


def encodable(value: Any) -> bool:
    try:
        canonical_json(value)
    except ValueError:  # lone surrogates
        return False
    return True


METADATA = st.dictionaries(st.text(), JSON, max_size=4).filter(encodable)


@pytest.fixture
def library() -> Library:
    metadata = {"b": [1, 2.5], "a": "ü"}
    return Library(elf=b"\x7fELF" + bytes(range(200)), metadata=metadata, weights=b"w" * 100, program=b"p" * 70)


@given(elf=NEAR_A_PAGE, metadata=METADATA, weights=NEAR_A_PAGE, program=st.binary())
def test_what_goes_into_a_library_comes_out_again(
    elf: bytes, metadata: dict[str, Any], weights: bytes, program: bytes
) -> None:
    library = Library(elf=elf, metadata=metadata, weights=weights, program=program)
    data = library.to_bytes()
    assert Library.from_bytes(data) == library
    assert Library.from_bytes(data).to_bytes() == data
    assert Library.view(data) == library


@given(elf=NEAR_A_PAGE, weights=NEAR_A_PAGE, program=st.binary())
def test_weights_start_on_a_page_of_the_file_and_the_program_on_a_cache_line(
    elf: bytes, weights: bytes, program: bytes
) -> None:
    data = Library(elf=elf, metadata={}, weights=weights, program=program).to_bytes()
    start = -(-len(elf) // PAGE) * PAGE
    behind = start + -(-len(weights) // LINE) * LINE
    assert data[: len(elf)] == elf
    assert data[start : start + len(weights)] == weights
    assert data[behind : behind + len(program)] == program


def test_equal_metadata_in_another_order_gives_equal_bytes() -> None:
    one = Library(elf=b"e", metadata={"a": 1, "b": 2})
    two = Library(elf=b"e", metadata={"b": 2, "a": 1})
    assert one.to_bytes() == two.to_bytes()


def test_a_view_copies_nothing(library: Library) -> None:
    data = bytearray(library.to_bytes())
    view = Library.view(data)
    data[:4] = b"EVIL"
    assert bytes(view.elf[:4]) == b"EVIL"


def test_a_view_cannot_be_written_to(library: Library) -> None:
    view = Library.view(bytearray(library.to_bytes()))
    with pytest.raises(TypeError, match="read-only"):
        view.weights[0] = 1  # type: ignore[index]


def test_its_repr_does_not_print_the_model(library: Library) -> None:
    assert repr(library) == "Library(metadata={'b': [1, 2.5], 'a': 'ü'})"


def test_any_flipped_bit_is_noticed(library: Library) -> None:
    data = library.to_bytes()
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        with pytest.raises(ArtifactError):
            Library.view(damaged)


def test_a_file_cut_off_anywhere_is_noticed(library: Library) -> None:
    data = library.to_bytes()
    for length in range(len(data)):
        with pytest.raises(ArtifactError):
            Library.view(memoryview(data)[:length])


@pytest.mark.parametrize("extra", [b"\0", b"more", bytes(PAGE)])
def test_an_extended_file_is_noticed(library: Library, extra: bytes) -> None:
    with pytest.raises(ArtifactError):
        Library.view(library.to_bytes() + extra)
    with pytest.raises(ArtifactError):
        Library.view(extra + library.to_bytes())


def resealed(library: Library, metadata: bytes) -> bytes:
    """A file whose lengths and digest are right and whose metadata is ``metadata``."""

    class Spelt(Library):
        def metadata_bytes(self) -> bytes:
            return metadata

    return Spelt(elf=library.elf, metadata={}, weights=library.weights).to_bytes()


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (b"[1]", "a JSON list"),
        (b'{"a": 1}', "JSON in another spelling"),
        (b'{"b":1,"a":1}', "JSON in another spelling"),
        (b'{"a":1,"a":1}', "a name used twice"),
        (b'{"a":NaN}', "unreadable text"),
        (b"\xff", "unreadable text"),
        (b"", "unreadable text"),
        (b"[" * 100_000, "unreadable text"),
    ],
)
def test_metadata_has_one_spelling(library: Library, metadata: bytes, found: str) -> None:
    with pytest.raises(ArtifactError, match=found):
        Library.view(resealed(library, metadata))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes, less than the footer alone"),
        (b"x" * (FOOTER - 1), f"{FOOTER - 1} bytes, less than the footer alone"),
        (b"x" * FOOTER, "no footer at its end: truncated, or another kind of file"),
        (b"\x7fELF" + bytes(5000), "no footer at its end: truncated, or another kind of file"),
        (b"just a text file, longer than a footer; " * 5, "no footer at its end: truncated, or another kind of file"),
    ],
)
def test_what_is_no_library_is_said_to_be_none(data: bytes, found: str) -> None:
    with pytest.raises(ArtifactError) as refusal:
        Library.from_bytes(data, where="model.so")
    assert (refusal.value.where, refusal.value.found) == ("model.so", found)


def test_another_format_version_is_named(library: Library) -> None:
    data = bytearray(library.to_bytes())
    data[-FOOTER + 9] = 4
    with pytest.raises(ArtifactError) as refusal:
        Library.view(data)
    assert (refusal.value.expected, refusal.value.found) == ("library format 2", "format 4")


@pytest.mark.parametrize("offset", [10, 40, 63])
def test_reserved_fields_are_zero(library: Library, offset: int) -> None:
    data = bytearray(library.to_bytes())
    data[-FOOTER + offset] = 1
    with pytest.raises(ArtifactError, match="reserved fields that are not 0"):
        Library.view(data)


def test_a_library_of_format_1_is_to_be_built_anew() -> None:
    body = b"\x7fELF".ljust(PAGE, b"\0") + b"{}"
    old = body + struct.pack(">8sHHIQQ", MAGIC, 1, 0, 2, PAGE, 0)
    with pytest.raises(ArtifactError, match="format 1, of an older release") as refusal:
        Library.view(old + hashlib.sha256(old).digest())
    assert refusal.value.fix.startswith("build it anew")


@pytest.mark.parametrize(
    ("start", "size"), [(12, 4), (16, 8), (24, 8), (32, 8)], ids=["metadata", "ELF", "weights", "program"]
)
@pytest.mark.parametrize("change", [-1, 1, 1 << 31])
def test_lengths_that_do_not_account_for_the_file_are_refused_even_with_a_right_digest(
    library: Library, start: int, size: int, change: int
) -> None:
    whole = Library(elf=b"e" * PAGE, metadata=library.metadata, weights=b"w" * LINE, program=b"p")
    data = bytearray(whole.to_bytes())
    field = slice(len(data) - FOOTER + start, len(data) - FOOTER + start + size)
    data[field] = (int.from_bytes(data[field], "big") + change).to_bytes(size, "big")
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    with pytest.raises(ArtifactError, match="the footer says, found"):
        Library.view(data)
