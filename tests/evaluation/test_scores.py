"""Task metrics against their plain definitions, and what they refuse."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.evaluation.scores import factory, resolve, source_digest


def score(metric: str, output: Any, labels: Any = None, reference: Any = None, *, feeds: int = 1) -> float:
    one = factory(metric)()
    outputs = np.asarray(output, dtype=np.float32)
    expected = None if labels is None else np.asarray(labels)
    exact = outputs if reference is None else np.asarray(reference, dtype=np.float32)
    for part in np.array_split(np.arange(len(outputs)), feeds):
        own = None if expected is None else expected[part]
        one.update({"logits": outputs[part]}, own, {"logits": exact[part]})
    return one.result()


@pytest.mark.parametrize(("metric", "alike"), [("mae", 0.0), ("cosine", 1.0)])
def test_what_is_infinite_alike_agrees(metric: str, alike: float) -> None:
    values = np.array([[1.0, -np.inf, np.nan, 2.0]])
    assert score(metric, values, reference=values) == pytest.approx(alike)
    assert not math.isfinite(score(metric, values, reference=[[1.0, -np.inf, 0.0, 2.0]]))
    assert not math.isfinite(score(metric, values, reference=[[1.0, np.inf, np.nan, 2.0]]))


@given(st.integers(1, 30), st.integers(2, 8), st.sampled_from([1, 5]), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_top_k_is_the_share_of_labels_among_the_k_largest(
    samples: int, classes: int, k: int, seed: int, feeds: int
) -> None:
    random = np.random.default_rng(seed)
    logits = random.integers(-3, 4, (samples, classes)).astype(np.float32)  # with ties
    labels = random.integers(0, classes, samples)
    largest = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    expected = 100.0 * np.mean([label in row for label, row in zip(labels, largest, strict=True)])
    assert score(f"top{k}", logits, labels, feeds=min(feeds, samples)) == pytest.approx(expected)


def test_a_row_with_nan_is_wrong_and_not_right_by_accident() -> None:
    assert score("top1", [[np.nan, 1.0], [0.0, 1.0]], [0, 1]) == 50.0
    assert score("top1", [[np.nan, 1.0]], [1]) == 0.0


def test_logits_may_carry_axes_of_length_one() -> None:
    assert score("top1", np.eye(3).reshape(3, 3, 1, 1), [[0], [1], [0]]) == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("labels", "expected", "found"),
    [
        (None, "class numbers `y`, one for each sample", "no labels"),
        ([0, 3], "classes 0 to 2, the values of 'logits'", "0 to 3"),
        ([-1, 0], "classes 0 to 2, the values of 'logits'", "-1 to 0"),
        ([0.5, 1.0], "one whole number for each sample", "float64 [2] for 2"),
        ([[1, 0, 0], [0, 1, 0]], "one whole number for each sample", "int64 [2, 3] for 2"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        score("top1", np.zeros((2, 3)), labels)
    assert str(caught.value) == (
        f"data, labels `y`: expected {expected}, found {found}\n"
        "fix: correct the labels, or choose another evaluate.metric"
    )


def test_mae_compares_with_the_labels_or_else_with_the_float_model() -> None:
    assert score("mae", [[1.0], [3.0]], [2.0, 3.5]) == 0.75
    assert score("mae", [[1.0], [3.0]], None, [[1.0], [5.0]]) == 1.0


def test_cosine_compares_directions() -> None:
    assert score("cosine", [[1.0, 0.0], [3.0, 3.0]], None, [[2.0, 0.0], [1.0, -1.0]]) == pytest.approx(0.5)
    assert score("cosine", [[0.0, 0.0]], None, [[0.0, 0.0]]) == 1.0
    assert score("cosine", [[0.0, 0.0]], None, [[1.0, 0.0]]) == 0.0


def test_labels_of_another_size_than_the_output_are_refused() -> None:
    with pytest.raises(DataError, match=r"expected as many values as output 'logits', \[2, 3\], found \[2\]"):
        score("mae", np.zeros((2, 3)), [0.0, 1.0])


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (None, "cosine"),
        (np.zeros(4, np.int64), "top1"),
        (np.zeros((4, 1), np.uint8), "top1"),
        (np.zeros(4, np.float32), "mae"),
        (np.zeros((4, 7), np.int64), "mae"),
    ],
)
def test_auto_follows_the_kind_of_labels(labels: Any, metric: str) -> None:
    assert resolve("auto", labels) == metric
    assert resolve("top5", labels) == "top5"


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_scores.py").write_text(
        "def first(outputs, labels):\n"
        "    (array,) = outputs.values()\n"
        "    return (array[:, 0] == labels).mean()\n"
        "def nan(outputs, labels):\n"
        "    return float('nan')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_scores", raising=False)
    return "my_scores"


def test_a_users_function_sees_all_samples_at_once(user_module: str) -> None:
    outputs = [[0.0, 9.0], [1.0, 9.0], [5.0, 9.0], [3.0, 9.0]]
    assert score(f"{user_module}:first", outputs, [0, 1, 2, 3], feeds=3) == 0.75


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("{0}:missing", "expected an importable module:function, found module '{0}' has no attribute 'missing'"),
        ("no_such:function", "expected an importable module:function, found No module named 'no_such'"),
        ("{0}:nan", "expected a finite number from {0}:nan, found nan"),
        ("top_1", "expected a metric: cosine, mae, top1, top5, found 'top_1'\nfix: did you mean 'top1'?"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(user_module: str, metric: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        score(metric.format(user_module), np.zeros((2, 2)), [0, 1])
    assert str(caught.value).startswith(f"evaluate.metric: {message.format(user_module)}")


def test_an_edited_metric_has_another_digest(user_module: str, tmp_path: Path) -> None:
    before = source_digest(f"{user_module}:first")
    assert before == hashlib.sha256((tmp_path / "my_scores.py").read_bytes()).hexdigest()
    (tmp_path / "my_scores.py").write_text("def first(outputs, labels):\n    return 1.0\n")
    assert source_digest(f"{user_module}:first") != before
    assert source_digest("top1") is None
    with pytest.raises(ConfigError, match=r"found no module 'no_such.module'"):
        source_digest("no_such.module:function")


def test_scores_are_numbers_between_their_limits() -> None:
    assert math.isclose(score("cosine", [[1e-30, 1e-30]], None, [[1e30, 1e30]]), 1.0)


def test_outputs_without_values_differ_in_nothing() -> None:
    nothing = np.zeros((0, 3), np.float32)
    for metric, best in (("mae", 0.0), ("cosine", 1.0)):
        one = factory(metric)()
        one.update({"y": nothing}, None, {"y": nothing})
        assert one.result() == best
