"""Canonical JSON has one text per value, and digests are those of the standard library."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.digest import CHUNK, canonical_json, digest_bytes, digest_file, digest_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(value=JSON)
def test_canonical_json_reads_back_as_the_same_value(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(value=st.dictionaries(st.text(), st.integers(), min_size=2), seed=st.integers())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], seed: int) -> None:
    items = list(value.items())
    random.Random(seed).shuffle(items)
    assert digest_json(dict(items)) == digest_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_numbers_without_a_json_form_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no canonical JSON form"):
        canonical_json(value)


@pytest.mark.parametrize("value", [Path("x"), {1: 2}, {"a": {1, 2}}, object()])
def test_objects_outside_json_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_a_file_and_its_bytes_have_the_same_digest(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    assert digest_file(tmp_path / "file") == digest_bytes(content) == hashlib.sha256(content).hexdigest()
