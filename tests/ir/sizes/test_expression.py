"""Sizes: whatever way one is written, its value is that of the arithmetic it came from, and equal ones are alike."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.encoding import from_json, to_json
from forge_pipeline.ir.sizes.expression import Overgrown
from forge_pipeline.ir.sizes.interval import bounds
from forge_pipeline.ir.sizes.polynomial import MAX_WEIGHT

N, M, K = (e.extent(name) for name in "nmk")
VALUES = st.fixed_dictionaries({name: st.integers(0, 40) for name in "nmk"})


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATORS = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "floordiv": (e.floordiv, lambda a, b: a // b),
    "truncdiv": (e.truncdiv, truncated),
    "mod": (e.mod, lambda a, b: a % b),
    "min": (e.minimum, min),
    "max": (e.maximum, max),
    "equal": (e.equal, lambda a, b: int(a == b)),
    "at_least": (e.at_least, lambda a, b: int(a >= b)),
}
TREES = st.recursive(
    st.one_of(st.sampled_from("nmk"), st.integers(-9, 70)),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner),
    max_leaves=7,
)


def size_of(tree):
    if isinstance(tree, tuple):
        name, *args = tree
        return OPERATORS[name][0](*map(size_of, args))
    return e.extent(tree) if isinstance(tree, str) else tree


def value_of(tree, extents):
    if isinstance(tree, tuple):
        name, *args = tree
        return OPERATORS[name][1](*(value_of(arg, extents) for arg in args))
    return extents[tree] if isinstance(tree, str) else tree


def both(tree, extents):
    """Return a size and what it is to be; leave out what is not defined, or too large to be written."""
    try:
        return size_of(tree), value_of(tree, extents)
    except (Overgrown, ZeroDivisionError):
        assume(False)


@settings(max_examples=600, deadline=None)
@given(TREES, VALUES)
def test_a_size_has_the_value_of_the_arithmetic_that_made_it(tree, extents):
    size, wanted = both(tree, extents)
    assert e.evaluate(size, extents) == wanted
    low, high = e.bounds(size)
    assert (low is None or low <= wanted) and (high is None or wanted <= high)


@settings(max_examples=200, deadline=None)
@given(TREES, VALUES, st.sampled_from("nmk"), TREES)
def test_what_is_substituted_has_the_value_of_what_is_put_in(tree, extents, name, inner):
    size, _ = both(tree, extents)
    put, value = both(inner, extents)
    assume(value >= 0)
    try:
        wanted = value_of(tree, {**extents, name: value})
        found = e.substitute(size, {name: put})
    except (Overgrown, ZeroDivisionError):
        assume(False)
    assume(e.bounds(put)[0] is not None and e.bounds(put)[0] >= 0)  # an extent is never negative
    assert e.evaluate(found, extents) == wanted


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_json_gives_back_the_very_same_size(tree):
    size, _ = both(tree, {"n": 3, "m": 5, "k": 7})
    assert from_json(to_json(size)) == size


SAME = {
    "(2n+3)//2 = n+1": (e.floordiv(2 * N + 3, 2), N + 1),
    "(n+2)//2 = n//2+1": (e.floordiv(N + 2, 2), e.floordiv(N, 2) + 1),
    "64nm // nm = 64": (e.floordiv(64 * N * M, N * M), 64),
    "(nm+m) // (n+1) = m": (e.floordiv(N * M + M, N + 1), M),
    "(n*n-1) // (n-1) = n+1": (e.floordiv(N * N - 1, N - 1), N + 1),
    "(n//2)//3 = n//6": (e.floordiv(e.floordiv(N, 2), 3), e.floordiv(N, 6)),
    "((n+1)//2+1)//2 = (n+3)//4": (e.floordiv(e.floordiv(N + 1, 2) + 1, 2), e.floordiv(N + 3, 4)),
    "6n // 4 = 3n // 2": (e.floordiv(6 * N, 4), e.floordiv(3 * N, 2)),
    "-(-n // 2) = (n+1)//2": (-e.floordiv(-N, 2), e.floordiv(N + 1, 2)),
    "-(-n // 3) = (n+2)//3": (-e.floordiv(-N, 3), e.ceildiv(N, 3)),
    "n - n%4 = 4(n//4)": (N - e.mod(N, 4), 4 * e.floordiv(N, 4)),
    "min + max = sum": (e.minimum(N, M) + e.maximum(N, M), N + M),
    "max(5-n, 0) = max(5, n) - n": (e.maximum(5 - N, 0), e.maximum(5, N) - N),
    "-1 // n = -1": (e.floordiv(-1, N), -1),
    "-8 // 16((n+7)//8) = -1": (e.floordiv(-8, 16 * e.floordiv(N + 7, 8)), -1),
    "(m-n) // (n+m+1) of what is less": (e.floordiv(-N - 1, N + M + 1), -1),
    "max(n, 0) = n": (e.maximum(N, 0), N),
    "max(max(n, m), n) = max(m, n)": (e.maximum(e.maximum(N, M), N), e.maximum(M, N)),
    "max(2n+3, 3) = 2n+3": (e.maximum(2 * N + 3, 3), 2 * N + 3),
    "n = n": (e.equal(N, N), 1),
    "n = n + 1": (e.equal(N, N + 1), 0),
    "2n = 2m + 1": (e.equal(2 * N, 2 * M + 1), 0),
    "2n = 2m as n = m": (e.equal(2 * N, 2 * M), e.equal(M, N)),
    "n = -1": (e.equal(N, -1), 0),
    "not n >= 3 as n < 3": (e.negated(e.at_least(N, 3)), e.at_least(2, N)),
    "a flag's square is itself": (e.equal(N, 3) * e.equal(N, 3), e.equal(N, 3)),
    "select of equals": (e.select(e.equal(N, M), K, K), K),
    "n >= 0": (e.at_least(N, 0), 1),
    "n//2*2 <= n": (e.at_least(N, 2 * e.floordiv(N, 2)), 1),
    "n%8 < 8": (e.at_least(7, e.mod(N, 8)), 1),
    "n//2 + (n+1)//2 = n": (e.equal(e.floordiv(N, 2) + e.floordiv(N + 1, 2), N), 1),
    "min(n, 9) <= n": (e.at_least(N, e.minimum(N, 9)), 1),
    "n - min(n, m) >= 0": (e.at_least(N - e.minimum(N, M), 0), 1),
    "(n+m)//k + 1 > 0": (e.at_least(e.floordiv(N + M, K), 0), 1),
    "trunc of what is not negative": (e.truncdiv(N + 3, 2), e.floordiv(N + 3, 2)),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_sizes_are_written_alike(name):
    left, right = SAME[name]
    assert left == right
    assert hash(left) == hash(right)


@pytest.mark.parametrize("size", [e.equal(N, M), e.at_least(N, 1), e.equal(N, 0), e.equal(e.floordiv(N, 2), 3)])
def test_what_is_not_proved_is_not_decided(size):
    assert not isinstance(size, int)
    assert e.bounds(size) == (0, 1)


def test_quotients_round_towards_zero_where_a_sign_is_open():
    size = e.truncdiv(N - 5, 2)
    assert [e.evaluate(size, {"n": n}) for n in (0, 2, 4, 5, 6, 7)] == [-2, -1, 0, 0, 0, 1]


def test_a_least_extent_settles_a_sign():
    assert e.truncdiv(e.extent("n", low=1) - 1, 4) == e.floordiv(N - 1, 4)


def test_a_sum_over_many_names_is_bounded_name_by_name():
    total = sum(4 * e.minimum(e.extent(f"class_{index}"), 300) for index in range(90))
    assert bounds(total) == (0, 90 * 4 * 300)
    assert bounds(total - e.minimum(N, M) - e.extent("class_0")) == (None, 90 * 4 * 300)


def test_an_extent_with_an_upper_bound_is_compared_with_it():
    short = e.extent("short", 512)
    assert e.minimum(short, 512) == short
    assert e.at_least(512, short) == 1
    assert e.at_least(511, short) not in (0, 1)


@pytest.mark.parametrize("function", [e.floordiv, e.truncdiv, e.mod])
def test_a_division_by_zero_is_not_defined(function):
    with pytest.raises(Overgrown):
        function(N, 0)


def test_a_quotient_is_not_defined_where_its_divisor_is_zero():
    with pytest.raises(Overgrown):
        e.evaluate(e.floordiv(N, M), {"n": 3, "m": 0})


def test_what_grows_without_end_is_given_up():
    size, steps = N + 1, 0
    with pytest.raises(Overgrown):
        for steps in range(MAX_WEIGHT):  # noqa: B007
            size = size * (e.floordiv(size, 7) + M)
    assert steps < 10


def test_names_that_are_no_identifiers_do_not_mix_with_expressions():
    odd = e.extent("n + m")
    assert odd != N + M
    assert e.names(odd) == {"n + m"}
    assert e.evaluate(odd, {"n + m": 4, "n": 1, "m": 1}) == 4


def test_sizes_can_be_read():
    assert str(e.floordiv(N + 3, 4) * 2 + M - 1) == "2*floor((n + 3)/4) + m - 1"
    assert str(e.equal(N, M)) == "[m - n == 0]"


def test_a_bound_of_a_sum_of_many_divisions_is_looked_for_in_a_limited_number_of_steps(monkeypatch):
    from forge_pipeline.ir.sizes import interval

    looked, low = [], interval._interval_low

    def counted(terms):
        looked.append(terms)
        return low(terms)

    monkeypatch.setattr(interval, "_interval_low", counted)
    n, m = e.extent("n"), e.extent("m")
    bounds(e.total([(-1) ** i * e.floordiv(n * (i + 2) + m + i, 2 * i + 3) for i in range(24)]))
    assert 1000 < len(looked) < 60 * interval._STEPS
