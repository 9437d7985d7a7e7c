"""Calls of sizes that a library has no code for: empty ones, and ones between those that it was compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine
from forge_runtime.entries import Entries
from tests.support.sums import assert_same_sums

WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4)
SIZES = [{"batch": 1}, {"batch": 1, "length": 64}, {"batch": 1, "length": 128}, {"batch": 8, "length": 64}]


def table(*extents: Mapping[str, int], names: Sequence[str] = ("batch", "length")) -> Entries:
    rows = [{"function": f"main_{number}", "extents": sizes} for number, sizes in enumerate(extents)]
    return Entries.of({"inputs": [{"shape": [*names, 3]}], "entries": rows}, where="library")


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("batch", "length", "taking", "holding"),
    [
        (1, 64, {"batch": 1, "length": 64}, {"batch": 1, "length": 64}),
        (1, 100, {"batch": 1}, {"batch": 1, "length": 128}),
        (1, 500, {"batch": 1}, {"batch": 1}),
        (3, 64, None, {"batch": 8, "length": 64}),
        (3, 100, None, None),
        (8, 64, {"batch": 8, "length": 64}, {"batch": 8, "length": 64}),
    ],
)
def test_the_entry_of_a_call_is_the_one_that_fixes_most(
    batch: int, length: int, taking: object, holding: object
) -> None:
    entries, sizes = table(*SIZES), {"batch": batch, "length": length}
    found = [entries.taking(sizes), entries.holding(sizes)]
    assert [row and dict(row.extents) for row in found] == [taking, holding]


def test_what_is_empty_comes_back_empty(bound_library: Library) -> None:
    product, relu = Engine(bound_library.to_bytes())(np.zeros((0, 8), np.float32))
    assert (product.shape, product.dtype, relu.shape) == ((0, 4), np.float32, (0, 4))


def test_sizes_that_no_entry_has_are_refused_where_there_is_no_open_form(listed_library: Library) -> None:
    engine = Engine(listed_library.to_bytes())
    assert_same_sums(engine(rows(4))[0], rows(4) @ WEIGHT, terms=8)
    with pytest.raises(DataError, match=r"expected sizes that the library was compiled for: n=4, found n=3"):
        engine(rows(3))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_padding_gives_what_the_call_asked_for(listed_library: Library, count: int) -> None:
    engine = Engine(listed_library.to_bytes(), pad=True)
    product, relu = engine(rows(count))
    assert_same_sums(product, rows(count) @ WEIGHT, terms=8)
    np.testing.assert_array_equal(relu, np.maximum(product, 0))


def test_what_is_larger_than_every_entry_is_refused_even_with_padding(listed_library: Library) -> None:
    engine = Engine(listed_library.to_bytes(), pad=True)
    with pytest.raises(DataError, match=r"n=4, found n=5"):
        engine(rows(5))


def test_metadata_with_entries_for_unknown_extents_are_refused(bound_library: Library) -> None:
    with pytest.raises(ArtifactError, match="expected entries for extents of the inputs, found m"):
        entries = [{"function": "main", "extents": {"m": 4}}]
        Engine(replace(bound_library, metadata={**bound_library.metadata, "entries": entries}).to_bytes())
