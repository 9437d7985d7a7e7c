"""Sizes in postfix have the value that they have in the metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.codegen.program.expression import postfix
from tests.support.constraints import value
from tests.support.program import evaluate

NAMES = ("h", "w")
UNARY, BINARY = ("neg", "abs", "floor", "ceil", "round", "sqrt", "cast"), ("add", "sub", "mul", "div", "min", "max")
DTYPES = st.sampled_from(["float16", "float32", "float64"])


def products(atoms: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Sums of products of atoms."""
    product = st.builds(lambda number, factors: [number, *factors], st.integers(-9, 9), st.lists(atoms, max_size=2))
    return st.integers(-99, 99) | st.lists(product, max_size=3)


def larger(sizes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Atoms of sizes, and of floats that are made of them."""
    leaves = st.builds(lambda dtype, size: ["whole", dtype, size], DTYPES, sizes) | st.builds(
        lambda dtype, number: ["number", dtype, float(number).hex()], DTYPES, st.sampled_from([0.1, 0.5, -2.0, 1e9])
    )
    one = st.builds(lambda name, dtype, real: [name, dtype, real], st.sampled_from(UNARY), DTYPES, leaves)
    reals = (
        leaves
        | one
        | st.builds(lambda name, dtype, a, b: [name, dtype, a, b], st.sampled_from(BINARY), DTYPES, one, one)
    )
    kinds = st.sampled_from(["positive", "is_zero", "not_negative"])
    atoms = st.builds(lambda kind, size: [kind, size], kinds, sizes)
    atoms |= st.builds(lambda a, b: ["floordiv", a, b], sizes, sizes)
    return products(atoms | st.builds(lambda real: ["truncation", real], reals))


EXTENTS = st.sampled_from(NAMES).map(lambda name: ["extent", name])
SIZES = st.recursive(products(EXTENTS), larger, max_leaves=6)


@given(size=SIZES, h=st.integers(0, 100), w=st.integers(0, 100))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_size_has_the_value_that_the_metadata_give_it(size: Any, h: int, w: int) -> None:
    words = postfix(size, {name: number for number, name in enumerate(NAMES)})
    assert evaluate(words, (h, w)) == value(size, {"h": h, "w": w})


def test_a_sum_is_written_from_left_to_right() -> None:
    assert postfix([[2, ["extent", "w"]], [-3]], {"h": 0, "w": 1}) == [1, 1, 0, 2, 4, 0, -3, 2]


def test_floats_are_rounded_at_each_step() -> None:
    height = ["whole", "float16", [[1, ["extent", "h"]]]]
    third = ["mul", "float16", ["number", "float16", (1 / 3).hex()], height]
    assert evaluate(postfix([[1, ["truncation", third]]], {"h": 0}), [3000]) == int(
        np.float16(np.float16(1 / 3) * np.float16(3000))
    )
