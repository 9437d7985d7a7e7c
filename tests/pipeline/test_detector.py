"""A model that finds as many rows as there are: quantized, compiled, measured, and judged by a user's own metric."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.ir.sizes.counted import counted_axes
from tests.support.detector import detector, images
from tests.support.paths import ROOT

METRIC = """
import numpy as np
def found(outputs, labels):
    counts = [len(boxes) for boxes in outputs["boxes"]]
    assert [len(scores) for scores in outputs["scores"]] == counts
    return float(np.mean(counts))
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(detector(), tmp_path / "detector.onnx")
    np.savez(tmp_path / "images.npz", x=images(24))
    return tmp_path / "detector.onnx", tmp_path / "images.npz"


@pytest.mark.parametrize("quantize", ["static", pytest.param("dynamic", marks=pytest.mark.long)])
def test_a_detector_with_its_suppression_is_quantized_and_measured(
    forge: Any, files: tuple[Path, Path], tmp_path: Path, quantize: str
) -> None:
    model, data = files
    out = tmp_path / "out"
    done = forge("run", f"model.path={model}", f"data.path={data}", "data.calibration_samples=8",
                 f"quantize={quantize}", f"out={out}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["samples"] == 16
    assert 0.8 < metrics["quantized"] <= metrics["float"] == 1.0
    assert metrics["quantized_sqnr_db.boxes"] > 5
    assert metrics["compiled_sqnr_db.boxes"] >= metrics["quantized_sqnr_db.boxes"] - 1


def test_a_metric_of_ones_own_gets_a_list_of_what_each_feed_found(
    forge: Any, files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = files
    (tmp_path / "my_metric.py").write_text(METRIC)
    out = tmp_path / "out"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = forge("run", f"model.path={model}", f"data.path={data}", "data.calibration_samples=8", "quantize=static",
                 "evaluate.metric=my_metric:found", f"out={out}", env={"PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["float"] > 20
    assert abs(metrics["quantized"] - metrics["float"]) < 0.2 * metrics["float"]


def test_the_axis_that_data_decides_is_known() -> None:
    assert counted_axes(detector()) == {"boxes": 0, "scores": 0}
