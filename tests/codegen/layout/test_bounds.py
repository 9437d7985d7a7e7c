"""What is no number stays none behind bounds, as in ONNX Runtime."""

from __future__ import annotations

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
    "Min": "y = Min(x, z)",
    "HardSigmoid": "y = HardSigmoid(x)",
    "HardSwish": "y = HardSwish(x)",
    "Elu": "y = Elu(x)",
    "Selu": "y = Selu(x)",
}


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
