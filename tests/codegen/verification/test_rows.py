"""As many rows as a model finds: rounding makes it one more or one less; all others are compared all the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from forge_pipeline.codegen.verification.judge import Judge
from forge_pipeline.codegen.verification.rounding import dithered
from forge_pipeline.codegen.verification.rows import strays
from forge_pipeline.config import bind
from forge_pipeline.errors import VerificationError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.build import quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.settings import Config
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


@pytest.fixture(scope="module")
def in_bytes() -> onnx.ModelProto:
    """The detector with ranges from smooth pictures, in QDQ form."""
    module = ONNXModule(detector())
    feeds = [{"image": picture[None]} for picture in images(8)]
    ranges = calibrate(module, feeds, total=len(feeds), histogram_values=1 << 10)
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    config = bind(Config, {**values, "calib_method": "minmax", "improve": []}, where="quantize")
    model: onnx.ModelProto = quantize_statically(config, module, ranges)[0].mod
    return model


def judged_in_bytes(model: onnx.ModelProto, other: onnx.ModelProto, seeds: range) -> Judge:
    """Judge what another form of a quantized detector finds, each on a picture of its own."""
    judge = Judge(model=model, limit=0.02, limit_name="quantized")
    for seed in seeds:
        feed = {"image": images(1, seed)}
        want, have = Interpreter(model)(feed), Interpreter(other)(feed)
        judge.compare(feed, list(want), list(want.values()), [have[name] for name in want])
    return judge


def test_what_rounding_decides_is_forgiven_a_detector_in_bytes(in_bytes: onnx.ModelProto) -> None:
    """Another draw of all roundings than those that it is held against: it finds some boxes more, and some less."""
    judge = judged_in_bytes(in_bytes, dithered(in_bytes, 17), range(20, 24))
    assert 0 < max(judge.strays.values(), default=0.0) < 1
    assert all(judge.worst[name] >= judge.limit for name in judge.strays)


def test_other_weights_are_not_forgiven_a_detector_in_bytes(in_bytes: onnx.ModelProto) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(in_bytes)
    weights = next(
        each for each in other.graph.initializer if each.data_type == TensorProto.INT8 and len(each.dims) == 4
    )
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    with pytest.raises(VerificationError):
        judged_in_bytes(in_bytes, other, range(20, 21))


def test_another_type_is_no_matter_of_rounding() -> None:
    with pytest.raises(VerificationError, match="float64"):
        judged({name: values.astype(np.float64) for name, values in found().items()})
