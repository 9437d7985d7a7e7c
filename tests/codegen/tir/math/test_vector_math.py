"""exp, log, tanh, erf and sigmoid as vectors: close to the exact value everywhere, and right at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

EPSILON = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("name", "exact", "units"),
    [
        ("exp", np.exp, 2),
        ("tanh", np.tanh, 4),
        ("erf", np.vectorize(math.erf), 4),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 4),
        ("sinh", np.sinh, 5),
        ("cosh", np.cosh, 5),
        ("atan", np.arctan, 4),
        ("asin", np.arcsin, 4),
        ("acos", np.arccos, 4),
    ],
)
def test_a_function_is_within_a_few_units_in_the_last_place(
    evaluate: Callable[..., np.ndarray], name: str, exact: Any, units: int
) -> None:
    x = np.concatenate([np.linspace(-86.9, 88, 100_003), np.linspace(-6, 6, 100_003), np.geomspace(1e-30, 1, 1000)])
    x = x.astype(np.float32)
    x = x[np.abs(x) <= 1] if name in ("asin", "acos") else x
    expected = exact(x.astype(np.float64))
    found = evaluate(name, x).astype(np.float64)
    normal = np.abs(expected) > np.finfo(np.float32).tiny
    assert np.abs(found / np.where(normal, expected, 1) - 1)[normal].max() <= units * EPSILON


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [np.nan, np.inf, 0, np.inf, 0]),
        ("tanh", [np.nan, 1, -1, 1, -1]),
        ("erf", [np.nan, 1, -1, 1, -1]),
        ("sigmoid", [np.nan, 1, 0, 1, 0]),
        ("log", [np.nan, np.inf, np.nan, np.log(200), np.nan]),
        ("sinh", [np.nan, np.inf, -np.inf, np.inf, -np.inf]),
        ("cosh", [np.nan, np.inf, np.inf, np.inf, np.inf]),
        ("atan", [np.nan, np.pi / 2, -np.pi / 2, np.arctan(200), np.arctan(-200)]),
        ("asin", [np.nan] * 5),
        ("acos", [np.nan] * 5),
    ],
)
def test_a_function_keeps_nan_and_reaches_its_limits(
    evaluate: Callable[..., np.ndarray], name: str, expected: list[float]
) -> None:
    found = evaluate(name, np.array([np.nan, np.inf, -np.inf, 200.0, -200.0]))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("name", ["sinh", "asin", "atan"])
def test_an_odd_function_keeps_a_zeros_sign(evaluate: Callable[..., np.ndarray], name: str) -> None:
    found = evaluate(name, np.array([0.0, -0.0]))
    assert not found.any()
    assert np.signbit(found).tolist() == [False, True]


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_what_half_of_a_power_of_e_is_has_a_number_to_the_last(evaluate: Callable[..., np.ndarray], name: str) -> None:
    x = np.array([88.8, 89.0, 89.4], np.float32)
    np.testing.assert_allclose(evaluate(name, x), getattr(np, name)(x.astype(np.float64)), rtol=5 * EPSILON)


def test_exp_is_finite_up_to_the_largest_number_and_infinite_above(
    evaluate: Callable[..., np.ndarray],
) -> None:
    largest = np.float32(np.log(np.finfo(np.float32).max))
    x = np.array([88.3, 88.4, 88.7, np.nextafter(largest, np.float32(0)), np.nextafter(largest, np.float32(100))])
    found = evaluate("exp", x)
    np.testing.assert_allclose(found[:4], np.exp(x.astype(np.float32).astype(np.float64))[:4], rtol=2.5e-7)
    assert found[4] == np.inf


def test_log_is_within_two_units_from_the_smallest_number_to_the_largest(
    evaluate: Callable[..., np.ndarray],
) -> None:
    x = np.concatenate([np.geomspace(1e-44, 3.4e38, 100_003), np.linspace(0.5, 2, 100_003), [0.0, -0.0, 1.0]])
    x = x.astype(np.float32)
    with np.errstate(divide="ignore"):
        exact = np.log(x.astype(np.float64))
    found = evaluate("log", x).astype(np.float64)
    assert (found[-3:] == [-np.inf, -np.inf, 0]).all()
    np.testing.assert_allclose(found[:-3], exact[:-3], rtol=2 * EPSILON, atol=0)


def test_a_quotient_without_a_remainder_has_none() -> None:
    """As a product by a rounded inverse, which that in an erf is, it may: 41 / 41 is then less than one."""
    import tvm
    from tvm import te, tirx

    from forge_pipeline.codegen.tir.math.vector_math import install
    from forge_pipeline.target import Target

    install()
    divisor = np.float32(41)
    values = divisor * np.arange(1, 257, dtype=np.float32)
    assert (values * (1 / divisor) % 1).any()
    x = te.placeholder(values.shape, name="x")
    one, by = tirx.const(1, "float32"), tirx.const(float(divisor), "float32")
    y = te.compute(values.shape, lambda i: tirx.call_intrin("float32", "tirx.fmod", x[i] / by, one))
    kernel = tvm.compile(te.create_prim_func([x, y]), target=Target.from_tag("host").tvm())["main"]
    found = tvm.runtime.tensor(np.ones_like(values))
    kernel(tvm.runtime.tensor(values), found)
    assert not found.numpy().any()
