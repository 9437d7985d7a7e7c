"""The bundled example is what its README says: a small real model, its data, and a script that makes them again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from forge_pipeline.pipeline.hydra_app import compose
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "digits"
PARTS = {"calibration": 200, "evaluation": 500}


def part(name: str, folder: Path = FOLDER) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"{name}.npz") as arrays:
        return arrays["x"], arrays["y"]


def accuracy(folder: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "digits.onnx", providers=["CPUExecutionProvider"])
    x, y = part("evaluation", folder)
    (logits,) = session.run(["logits"], {"image": x})
    return float((logits.argmax(axis=1) == y).mean())


def test_the_model_gets_at_least_98_percent_right() -> None:
    assert accuracy(FOLDER) >= 0.98


def test_the_model_is_small_valid_and_has_one_of_each_thing() -> None:
    path = FOLDER / "digits.onnx"
    assert 30_000 < path.stat().st_size < 200_000
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("BatchNormalization") == operators.count("Conv") == 8
    assert set(operators) >= {"Add", "MaxPool", "AveragePool", "Gemm", "Relu", "Clip"}
    groups = {a.i for node in model.graph.node for a in node.attribute if a.name == "group"}
    assert groups == {1, 24, 96}


def test_the_model_says_nothing_about_who_trained_it() -> None:
    model = onnx.load(FOLDER / "digits.onnx")
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    assert not model.metadata_props


@pytest.mark.parametrize("name", PARTS)
def test_the_data_is_as_the_model_wants_it(name: str) -> None:
    x, y = part(name)
    assert (x.dtype, x.shape) == (np.float32, (PARTS[name], 1, 8, 8))
    assert (y.dtype, y.shape) == (np.int64, (PARTS[name],))
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert set(y.tolist()) == set(range(10))


def test_no_image_both_calibrates_and_evaluates() -> None:
    seen = [{image.tobytes() for image in part(name)[0]} for name in PARTS]
    assert seen[0].isdisjoint(seen[1])


def test_the_configuration_uses_all_of_it() -> None:
    config = compose(["model=digits", "data=digits"])
    places = (config["model"]["path"], config["data"]["path"], config["data"]["eval_path"])
    assert {Path(place).resolve() for place in places} <= {path.resolve() for path in FOLDER.iterdir()}
    assert config["data"]["calibration_samples"] == PARTS["calibration"]


@pytest.mark.long
def test_training_again_gives_such_a_model_on_the_same_split(tmp_path: Path) -> None:
    missing = [name for name in ("torch", "sklearn", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'forge-pipeline[examples]'")
    subprocess.run([sys.executable, FOLDER / "train.py", "--out", tmp_path], check=True, capture_output=True)
    assert accuracy(tmp_path) >= 0.98
    for name in PARTS:
        assert (tmp_path / f"{name}.npz").read_bytes() == (FOLDER / f"{name}.npz").read_bytes()
