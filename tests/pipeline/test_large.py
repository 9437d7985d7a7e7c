"""A model whose weights stay in files, built as users build it; and one of more than 2 GB, whose memory is watched."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.memory import build, large_model
from forge_pipeline import Engine, ONNXModule
from tests.support.sums import assert_same_sums

MOST = 2.2
"""The peak memory of a stage, in multiples of the weights."""


def sum_lengths(model: ONNXModule) -> int:
    """Return how many products the layers of ``large_model`` sum up, one layer behind the other."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.light.graph.initializer}
    shapes = [
        (node, weights[node.input[1]]) for node in model.light.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")
    ]
    return sum(math.prod(shape[1:]) if node.op_type == "Conv" else max(shape) for node, shape in shapes)


@pytest.mark.long
def test_a_build_with_weights_in_files_delivers_a_model_that_can_be_loaded_again(forge: Any, tmp_path: Path) -> None:
    import onnxruntime

    path, out = tmp_path / "m.onnx", tmp_path / "out"
    weights = large_model(path, 1, width=256)
    done = forge("run", f"model.path={path}", "load.inline_bytes=1000", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert (out / "model.data").stat().st_size >= weights > (out / "model.onnx").stat().st_size
    assert (out / "model.data").stat().st_nlink == 1  # a link would be refused as external data
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"image": image})
    terms = sum_lengths(ONNXModule.from_file(path))
    delivered = ONNXModule.from_file(out / "model.onnx").get_inference_function()(image)
    assert_same_sums(delivered, expected, terms=terms)
    assert_same_sums(Engine(out / "model_library.so")(image)[0], expected, terms=terms)
    assert json.loads((out / "metrics.json").read_text())["size_float_bytes"] > weights
    again = forge("run", f"model.path={path}", "load.inline_bytes=1000", f"out={out}")
    assert again.returncode == 0, again.stderr
    results = [row["result"] for row in json.loads((out / "manifest.json").read_text())["stages"]]
    assert set(results) == {"hit"}


@pytest.mark.long
def test_a_model_of_more_than_2_gb_is_built_in_little_more_memory_than_twice_its_weights(tmp_path: Path) -> None:
    weights = large_model(tmp_path / "m.onnx", 2100)
    assert weights > 1 << 31
    rows = build([f"model.path={tmp_path / 'm.onnx'}", f"out={tmp_path / 'out'}", "target=host"], tmp_path)
    stages = [row.stage for row in rows]
    assert stages == ["load", "fold", "quantize", "compile", "evaluate", "encrypt", "delivered"]
    assert {row.stage: row.peak / weights for row in rows if row.peak > MOST * weights} == {}
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    delivered = ONNXModule.from_file(tmp_path / "out" / "model.onnx")
    assert delivered.is_mapped
    found = Engine(tmp_path / "out" / "model_library.so")(image)[0]
    assert_same_sums(found, delivered.get_inference_function()(image), terms=sum_lengths(delivered))
