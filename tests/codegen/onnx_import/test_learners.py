"""What scikit-learn's exporter writes, where it is installed: the same numbers as ONNX Runtime, at several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.ir.ml.to_standard import written_out
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_close

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
LEARNERS = {
    "forest": ("ensemble", "RandomForestClassifier", {"n_estimators": 20}),
    "boosting": ("ensemble", "GradientBoostingClassifier", {"n_estimators": 10}),
    "boosted numbers": ("ensemble", "GradientBoostingRegressor", {"n_estimators": 10}),
    "deep numbers": ("ensemble", "ExtraTreesRegressor", {"n_estimators": 20}),
    "logistic": ("linear_model", "LogisticRegression", {}),
    "support vectors": ("svm", "SVC", {}),
    "support numbers": ("svm", "SVR", {}),
    "bayes": ("naive_bayes", "GaussianNB", {}),
    "network": ("neural_network", "MLPClassifier", {"hidden_layer_sizes": (16,), "max_iter": 20}),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_learner_computes_what_onnx_runtime_does(name: str, dtype: Any) -> None:
    import importlib

    import onnxruntime

    pytest.importorskip("sklearn")
    skl2onnx = pytest.importorskip("skl2onnx")
    module, kind, options = LEARNERS[name]
    learner = getattr(importlib.import_module(f"sklearn.{module}"), kind)(**options)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 6)).astype(dtype)
    y = x[:, 0] + x[:, 1] ** 2
    is_number = kind == "SVR" or kind.endswith("Regressor")
    learner.fit(x, y if is_number else np.digitize(y, [0, 1]))
    flat = {id(learner): {"zipmap": False}} if hasattr(learner, "predict_proba") else None
    model = skl2onnx.to_onnx(learner, x[:1], options=flat, target_opset={"": 18, "ai.onnx.ml": 3})
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        pytest.skip("ONNX Runtime refuses what was exported")
    engine = Engine(build(written_out(model).model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    for rows in (1, 7, 100):
        for found, wanted in zip(engine(x[:rows]), session.run(None, {"X": x[:rows]}), strict=True):
            assert_close(found, wanted, within=1e-4)
