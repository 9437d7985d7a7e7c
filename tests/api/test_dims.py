"""Sizes of open extents, as programs give them: one when a model is loaded, several when it is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import forge_pipeline as forge
from forge_pipeline.errors import ConfigError


@pytest.fixture
def model() -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "graph", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_one_size_is_a_matter_of_loading(model: onnx.ModelProto) -> None:
    assert forge.load(model, dims={"batch": 3}).input_shapes == [(3, "length")]


def test_several_are_a_matter_of_compiling(model: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        forge.load(model, dims={"batch": 3, "length": [4, 8]})
    assert "several for length" in str(refusal.value)
    assert "compile(dims=...)" in str(refusal.value)
    with pytest.raises(
        ConfigError, match=r"dims\.length: expected a list of sizes, found 4\nfix: give dims=.*load\(dims="
    ):
        forge.load(model).compile(output_path=tmp_path / "out", dims={"length": 4})
    folder = forge.load(model, dims={"batch": 3}).compile(
        output_path=tmp_path / "out", dims={"length": [4, 8]}, open_form=False
    )
    engine = forge.Engine(folder / "model_library.so", threads=1, pad=True)
    for length in (3, 4, 7, 8):
        x = np.random.default_rng(length).standard_normal((3, length)).astype(np.float32)
        np.testing.assert_allclose(engine(x)[0], np.tanh(x), atol=1e-5)
