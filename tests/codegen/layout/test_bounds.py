"""What is no number stays none behind bounds, as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target

GRAPH = (
    '<ir_version: 10, opset_import: ["" : 18]> net (float[rows, 19] x, float[1, 19] z) => (float[rows, 19] y) {{ {} }}'
)
LIMITS = "low = Constant <value = float {-1}> () high = Constant <value = float {1}> ()"
CASES = {
    "Relu": "y = Relu(x)",
    "Clip": f"{LIMITS} y = Clip(x, low, high)",
    "Clip below": f"{LIMITS} y = Clip(x, low)",
    "Max of a constant": f"{LIMITS} y = Max(low, x)",
    "Min of a constant": f"{LIMITS} y = Min(x, high)",
    "Max": "y = Max(x, z)",
    "Max of a maximum": "n = Neg(x) a = Max(x, z) y = Max(a, n)",
    "Min of a minimum, which is second": "n = Neg(x) a = Min(n, z) y = Min(x, a)",
    "Min": "y = Min(x, z)",
    "HardSigmoid": "y = HardSigmoid(x)",
    "HardSwish": "y = HardSwish(x)",
    "Elu": "y = Elu(x)",
    "Selu": "y = Selu(x)",
}


@pytest.mark.every(10)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("generator", ["tiled", "stock"])
def test_no_number_is_none_behind_a_bound(case: str, generator: str) -> None:
    model = onnx.parser.parse_model(GRAPH.format(CASES[case]))
    options = Options(generator=generator, opt_level=3, float16=False, channel_layout=None)
    engine = loaded(build(model, Target.from_tag("host"), options), threads=1)
    x, z = np.random.default_rng(3).standard_normal((2, 5, 19)).astype(np.float32) * 2
    z = z[:1]
    x[1, 2], x[3, 4], z[0, 6] = np.nan, -np.inf, np.nan
    feed = {"x": x, "z": z}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    np.testing.assert_allclose(engine(**feed)[0], wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_row_of_bounds_does_not_grow_threefold_with_each(tmp_path: Path) -> None:
    pairs = ["m1, a0", "a1, m2", "m3, a2", "a3, m4", "m5, a4"]
    steps = "a0 = Max(x, z) " + " ".join(
        f"m{at} = Mul(x, z) a{at} = Max({pair})" for at, pair in enumerate(pairs, start=1)
    )
    model = onnx.parser.parse_model(GRAPH.format(f"{steps} y = Identity(a5)"))
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    build(model, Target.from_tag("host"), options, dump=tmp_path)
    assert 6 <= (tmp_path / "07-schedule.txt").read_text().count("isnan") <= 12  # one each, for any batch and for one
