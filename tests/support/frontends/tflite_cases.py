"""Small TensorFlow Lite models of the tests, by name: frontends/tflite/models/operators.npz."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime

from tests.support.paths import ROOT

FILE = ROOT / "tests" / "frontends" / "tflite" / "models" / "operators.npz"


@cache
def kept() -> dict[str, np.ndarray]:
    """Return models, inputs and outputs: NAME/model, NAME/in/CALL/PLACE, NAME/out/CALL/PLACE."""
    with np.load(FILE) as archive:
        return dict(archive)


def written(folder: Path, name: str) -> Path:
    """Return the file of a model, in ``folder``."""
    path = folder / "model.tflite"
    path.write_bytes(kept()[f"{name}/model"].tobytes())
    return path


def session(model):
    """Return the model in ONNX Runtime, every node as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
