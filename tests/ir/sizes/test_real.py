"""Floats made of sizes: each step is rounded as the element type rounds, and exact ones are seen to be whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes import real
from forge_pipeline.ir.sizes.encoding import from_json, to_json

N, M = e.extent("n"), e.extent("m")
SINGLE = np.float32


def floats(size, *steps):
    """Return a size as float32, taken through steps ``(operator, constant)`` or ``(operator,)``."""
    found = real.of_size(size, "float32")
    for op, *constants in steps:
        found = real.apply(op, "float32", found, *(real.of_number(value, "float32") for value in constants))
    return found


EXACT = {
    "n * 2": (floats(N, ("mul", 2.0)), 2 * N),
    "floor(n * 2)": (floats(N, ("mul", 2.0), ("floor",)), 2 * N),
    "floor(n / 2)": (floats(N, ("div", 2.0), ("floor",)), e.floordiv(N, 2)),
    "floor(n * 0.5)": (floats(N, ("mul", 0.5), ("floor",)), e.floordiv(N, 2)),
    "ceil(n / 3)": (floats(N, ("div", 3.0), ("ceil",)), e.ceildiv(N, 3)),
    "floor(n / 3)": (floats(N, ("div", 3.0), ("floor",)), e.floordiv(N, 3)),
    "floor(n * 1.5 + 0.5)": (floats(N, ("mul", 1.5), ("add", 0.5), ("floor",)), e.floordiv(3 * N + 1, 2)),
    "ceil((n - 3) / 5 + 1)": (floats(N - 3, ("div", 5.0), ("add", 1.0), ("ceil",)), e.ceildiv(N + 2, 5)),
    "floor(n / 7 - 2)": (floats(N, ("div", 7.0), ("sub", 2.0), ("floor",)), e.floordiv(N - 14, 7)),
    "n / 2 cut": (floats(N, ("div", 2.0)), e.floordiv(N, 2)),
    "round(n)": (floats(N, ("round",)), N),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_is_exact_is_a_whole_number(name):
    found, wanted = EXACT[name]
    assert found.to_whole(assuming=True) == wanted


def test_what_is_exact_says_up_to_where():
    found = floats(N, ("mul", 2.0))
    assert found.needs == {N, 2 * N}
    assert found.to_whole() != 2 * N  # n = 2**24 + 1 is rounded before it is doubled
    assert floats(e.extent("n", 1000), ("mul", 2.0)).to_whole() == 2 * N


@pytest.mark.parametrize(
    "steps",
    [(("mul", 1 / 3), ("floor",)), (("div", 3.0), ("mul", 3.0)), (("div", 3.0), ("add", 0.1)), (("sqrt",), ("floor",))],
)
def test_what_is_rounded_on_the_way_stays_as_it_is(steps):
    found = floats(N, *steps)
    whole = found.to_whole(assuming=True)
    for n in (0, 1, 2, 3, 9, 10, 49, 100, 12345, (1 << 24) + 1):
        value = SINGLE(n)
        for op, *constants in steps:
            call = {"add": np.add, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "floor": np.floor}[op]
            value = call(value, *(SINGLE(constant) for constant in constants))
        assert e.evaluate(whole, {"n": n}) == int(value)


def test_a_scale_that_is_no_power_of_two_is_applied_as_the_runtime_does():
    """0.3 as float32 is a little more than 0.3: 10 * 0.3 is 3, and 3.0000001 would not be less."""
    whole = floats(N, ("mul", 0.3), ("floor",)).to_whole()
    assert [e.evaluate(whole, {"n": n}) for n in (10, 30, 70, 90)] == [
        int(np.floor(SINGLE(n) * SINGLE(0.3))) for n in (10, 30, 70, 90)
    ]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, (1 << 24) - 1), st.integers(1, 4096))
def test_a_rounded_quotient_has_the_floor_and_the_ceiling_of_the_quotient(n, divisor):
    quotient = SINGLE(n) / SINGLE(divisor)
    assert int(np.floor(quotient)) == n // divisor
    assert int(np.ceil(quotient)) == -(-n // divisor)


@settings(max_examples=300, deadline=None)
@given(st.integers(-(1 << 23), 1 << 23), st.integers(1, 4096), st.integers(-(1 << 23), 1 << 23))
def test_a_whole_number_added_to_a_rounded_quotient_keeps_floor_and_ceiling(n, divisor, total):
    """``total`` is the numerator of the sum: both numerators are at most half of what the type holds."""
    added = (total - n) // divisor
    total = n + added * divisor
    if abs(total) > 1 << 23:
        return
    result = SINGLE(n) / SINGLE(divisor) + SINGLE(added)
    assert int(np.floor(result)) == total // divisor
    assert int(np.ceil(result)) == -(-total // divisor)


def test_a_sum_with_a_rounded_quotient_needs_half_the_range():
    assert floats(N, ("div", 5.0), ("add", 1.0)).needs == {N, 2 * N, 2 * N + 10}


def test_one_size_over_another_is_kept_and_evaluated():
    scale = real.apply("div", "float32", real.of_size(M, "float32"), real.of_size(N, "float32"))
    whole = real.apply("floor", "float32", real.apply("mul", "float32", real.of_size(N, "float32"), scale)).to_whole()
    for n, m in ((3, 7), (49, 98), (100, 33), (41, 41)):
        assert e.evaluate(whole, {"n": n, "m": m}) == int(np.floor(SINGLE(n) * (SINGLE(m) / SINGLE(n))))


def test_constants_are_computed_at_once():
    found = real.apply("mul", "float32", real.of_number(0.1, "float32"), real.of_number(3.0, "float32"))
    assert found.op == "number"
    assert found.args == (float(SINGLE(0.1) * SINGLE(3.0)),)


def test_what_is_no_number_is_not_defined():
    zero = real.apply("div", "float32", real.of_size(N, "float32"), real.of_size(M, "float32"))
    with pytest.raises(e.Overgrown):
        e.evaluate(zero.to_whole(), {"n": 0, "m": 0})


def test_a_substitution_makes_a_constant_of_it():
    whole = floats(N, ("mul", 0.3), ("floor",)).to_whole()
    assert e.substitute(whole, {"n": 10}) == 3


def test_json_keeps_floats_to_the_last_bit():
    whole = floats(N, ("mul", 0.3), ("add", 0.1), ("floor",)).to_whole() + M
    assert from_json(to_json(whole)) == whole
