from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.runtime.contents import CHUNK, DIGEST, Contents


@given(parts=st.lists(st.binary(max_size=900), max_size=5))
def test_contents_are_what_was_appended_and_the_digest_is_of_all_but_the_last_32_bytes(parts: list[bytes]) -> None:
    contents = Contents(sum(map(len, parts)))
    for part in parts:
        contents.append(part)
    assert contents.view() == b"".join(parts)
    assert contents.digest() == hashlib.sha256(b"".join(parts)[:-DIGEST]).digest()


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + DIGEST + 5])
def test_a_file_of_any_size_is_read_from_its_start_wherever_its_reader_was(size: int, tmp_path: Path) -> None:
    data, path = os.urandom(size), tmp_path / "file"
    path.write_bytes(data)
    contents = Contents(size)
    with path.open("rb") as stream:
        stream.read(8)
        contents.append_file(stream.fileno())
    assert contents.view() == data
    assert contents.digest() == hashlib.sha256(data[:-DIGEST]).digest()


def test_a_file_that_was_cut_off_or_has_grown_meanwhile_gives_what_is_there_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"contents")
    for limit, found in ((20, b"contents"), (4, b"cont")):
        contents = Contents(limit)
        with path.open("rb") as stream:
            contents.append_file(stream.fileno())
        assert contents.view() == found


def test_what_was_read_does_not_change_with_the_file_and_cannot_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"contents")
    contents = Contents(8)
    with path.open("rb") as stream:
        contents.append_file(stream.fileno())
    path.write_bytes(b"other")
    view = contents.view()
    del contents
    assert view == b"contents"
    with pytest.raises(TypeError):
        view[0] = 1
