"""As many rows as a model finds: rounding makes it one more or one less; all others are compared all the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.codegen.verification.judge import Judge
from forge_pipeline.codegen.verification.rows import strays
from forge_pipeline.errors import VerificationError
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.detector import detector, images

NUMBERS = st.lists(st.integers(0, 3), max_size=12)


def longest(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common subsequence by its definition."""
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return longest(one[:-1], other[:-1]) + 1
    return max(longest(one[:-1], other), longest(one, other[:-1]))


@given(NUMBERS.filter(lambda rows: len(rows) < 8), NUMBERS.filter(lambda rows: len(rows) < 8))
def test_strays_are_those_that_are_not_in_the_longest_common_subsequence(one: list[int], other: list[int]) -> None:
    want, have = (np.array(rows, np.float32).reshape(-1, 1) for rows in (one, other))
    total = len(one) + len(other)
    expected = (total - 2 * longest(one, other)) / total if total else 0.0
    assert strays(want, have, 0, 0.4) == pytest.approx(expected)


def test_a_row_in_front_moves_all_others_and_is_the_only_stray() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 3000, 4))
    assert strays(rows, rows[:, 1:], 1, 0.0) == pytest.approx(1 / 5999)
    assert strays(rows, rows + 0.05, 1, 0.1) == 0.0
    assert strays(rows, -rows, 1, 0.1) > 0.9
    assert strays(rows, rows[..., :3], 1, 0.1) == 1.0


def test_rows_are_alike_where_both_have_nan_or_the_same_infinity() -> None:
    rows = np.array([[np.nan], [np.inf], [1.0]])
    assert strays(rows, rows.copy(), 0, 0.1) == 0.0
    assert strays(rows, np.array([[np.nan], [-np.inf], [1.0]]), 0, 0.1) == pytest.approx(1 / 3)


def judged(have: dict[str, np.ndarray], name: str = "float32", limit: float = 1e-5) -> Judge:
    """Judge these results of the float detector on one picture."""
    feed = {"image": images(1)}
    want = Interpreter(detector())(feed)
    judge = Judge(model=detector(), limit=limit, limit_name=name)
    judge.compare(feed, list(want), list(want.values()), [have[each] for each in want])
    return judge


def found() -> dict[str, np.ndarray]:
    return dict(Interpreter(detector())({"image": images(1)}))


def test_what_both_find_is_no_stray() -> None:
    judge = judged(found())
    assert judge.strays == {}
    assert judge.report(["boxes"])["error"] == {"boxes": 0.0}


@pytest.mark.parametrize("lost", [1, 40])
def test_a_detector_in_floats_may_not_lose_what_rounding_does_not_decide(lost: int) -> None:
    have = {name: values[lost:] for name, values in found().items()}
    with pytest.raises(VerificationError, match=r"float32\[\d+, 4\]"):
        judged(have)


def test_a_box_more_is_forgiven_where_rounding_alone_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose results hang on noise as large as ours: here its draws find one box less."""
    from forge_pipeline.codegen.verification import judge

    real = judge.reference_of

    class Fewer:
        def __init__(self, model: object) -> None:
            self._run = real(model)  # type: ignore[arg-type]

        def __call__(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: values[:-1] for name, values in self._run(feed).items()}

    monkeypatch.setattr(judge, "reference_of", Fewer)
    boxes = len(found()["boxes"])
    told = judged({name: values[1:] for name, values in found().items()})
    assert told.strays["boxes"] == pytest.approx(1 / (2 * boxes - 1))
    with pytest.raises(VerificationError):
        judged({name: values[9:] for name, values in found().items()})


def test_another_type_is_no_matter_of_rounding() -> None:
    with pytest.raises(VerificationError, match="float64"):
        judged({name: values.astype(np.float64) for name, values in found().items()})
