"""sin, cos and pow as vectors: within little more than half a unit of every float32, and IEEE 754's special cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.control_flow import compare, model_of

Evaluate = Callable[..., np.ndarray]
COUNT = 1 << 16
HALF = 0.501
"""Units in the last place: what rounding may take, and a thousandth."""

SPECIAL = np.array(
    [
        0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38,
        2**23 + 1, -(2**23) - 1, 2**24, 1e9, -1e9, 1 + 2**-23, 1 - 2**-24, -1 - 2**-23, 149, -149, 150, 128, 1 / 3, 88,
    ],
    np.float32,
)  # fmt: skip


def any_bits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, COUNT, np.uint32).view(np.float32)


def between(low: float, high: float) -> np.ndarray:
    return np.random.default_rng(1).uniform(low, high, COUNT).astype(np.float32)


def assert_near(found: np.ndarray, exact: np.ndarray) -> None:
    """Demand the float32 next to what is exact, or the one beside it where that is as near but for a thousandth."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
    differs = ~((found == nearest) | (np.isnan(found) & np.isnan(nearest)))
    off = np.abs(found[differs].astype(np.float64) - exact[differs])
    assert np.isfinite(found[differs]).all()
    assert (off <= HALF * np.spacing(np.abs(nearest[differs]))).all()
    numbers = ~np.isnan(nearest)
    assert (np.signbit(found) == np.signbit(nearest))[numbers].all()


@pytest.mark.parametrize(("name", "exact"), [("sin", np.sin), ("cos", np.cos)])
def test_a_number_of_any_size_is_turned_as_it_is(evaluate: Evaluate, name: str, exact: Any) -> None:
    quarters = np.arange(1, COUNT) * 37 * np.pi / 2  # next to where nothing is left
    hardest = np.array([16367173 * 2.0**72, 5.01382e28, 1e22, 2.0**20, np.nextafter(np.float32(2**20), np.float32(0))])
    x = np.concatenate([any_bits(2), between(-1e5, 1e5), *(y.astype(np.float32) for y in (quarters, hardest)), SPECIAL])
    with np.errstate(invalid="ignore"):
        assert_near(evaluate(name, x), exact(x.astype(np.float64)))


def test_the_sine_of_a_number_does_not_hang_on_those_beside_it(evaluate: Evaluate) -> None:
    small = between(-1e6, 1e6)
    x = np.where(np.arange(COUNT) % 3 == 0, np.float32(1e30), small)
    alone, beside = evaluate("sin", small), evaluate("sin", x)
    np.testing.assert_array_equal(beside[x == small], alone[x == small])


def powers() -> tuple[np.ndarray, np.ndarray]:
    """Return bases and exponents: of any bits, of usual size, near one, whole, and of results that are not normal."""
    bases = [any_bits(3), between(0, 4), between(0.999, 1.001), between(-8, 8), between(1e-5, 0.4)]
    exponents = [any_bits(4), between(-10, 10), between(-80000, 80000), np.round(between(-20, 20))]
    least = np.random.default_rng(5).uniform(-103, -87, COUNT) / np.log(bases[-1].astype(np.float64))
    special = np.meshgrid(SPECIAL, SPECIAL)
    return (
        np.concatenate([*bases, special[0].ravel()]),
        np.concatenate([*exponents, least.astype(np.float32), special[1].ravel()]),
    )


def test_a_power_is_the_nearest_number_whatever_base_and_exponent(evaluate: Evaluate) -> None:
    x, y = powers()
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert_near(evaluate("pow", x, y), exact)


def test_what_is_left_by_a_divisor_is_exact(evaluate: Evaluate) -> None:
    x, y = powers()
    close = between(1, 2) * np.round(between(1, 2**20))  # next to a multiple of it, above and below
    x = np.concatenate([x, between(-1e6, 1e6), np.where(np.arange(COUNT) % 16 < 15, close, 1e30).astype(np.float32)])
    y = np.concatenate([y, between(-3, 3), between(1, 2)])
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    found = evaluate("fmod", x, y)
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("exponent", [1.7, -1.0, 0.0, np.inf, np.nan])
def test_an_exponent_that_is_known_is_one_of_float32(evaluate: Evaluate, exponent: float) -> None:
    import tvm
    from tvm import te, tirx

    from forge_pipeline.target import Target

    x = np.concatenate([SPECIAL, between(-4, 4)])
    values = te.placeholder(x.shape, name="x")
    y = te.compute(x.shape, lambda i: tirx.pow(values[i], tirx.const(exponent, "float32")), name="y")
    kernel = tvm.compile(te.create_prim_func([values, y]), target=Target.from_tag("host").tvm())["main"]
    found = tvm.runtime.tensor(np.zeros_like(x))
    kernel(tvm.runtime.tensor(x), found)
    with np.errstate(all="ignore"):
        assert_near(found.numpy(), np.power(x.astype(np.float64), np.float64(np.float32(exponent))))


def test_functions_in_a_row_are_kernels_of_few_of_them() -> None:
    """Written out in one another, they took TVM more than minutes."""
    model = model_of("""g (float[n, w] x) => (float[n, w] y) { p = Constant <value_float = 1.7> ()
        a = Sin (x) b = Sigmoid (a) c = Cos (b) d = Pow (c, p) e = Mul (d, p) y = Sin (e) }""")
    compare(model, [{"x": between(-9, 9)[: 3 * width].reshape(3, width)} for width in (5, 16)])
