"""Files as ONNX Runtime itself writes them in its own format, with its optimizer and without."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import forge_pipeline as forge
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.ort import convert
from tests.support.paths import ROOT

LEVELS = onnxruntime.GraphOptimizationLevel
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


def written(model: onnx.ModelProto, path: Path, level: Any = LEVELS.ORT_ENABLE_EXTENDED) -> Path:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path


def outputs(model: str | bytes, feed: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def branches() -> onnx.ModelProto:
    """A branch that reads weights and values around it, attributes of most kinds, text, and open sizes."""

    def body(name: str, op_type: str) -> onnx.GraphProto:
        result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N", 3])]
        local = [numpy_helper.from_array(np.float32([[1, 2, 3]]), "own")]
        nodes = [helper.make_node(op_type, ["n", "w"], ["q"]), helper.make_node("Mul", ["q", "own"], ["r"])]
        return helper.make_graph(nodes, name, [], result, local)

    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n"], axis=-1, epsilon=1e-3),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "limit"], ["c"]),
        helper.make_node("If", ["c"], ["b"], then_branch=body("then", "Add"), else_branch=body("else", "Sub")),
        helper.make_node("Transpose", ["b"], ["y"], perm=[1, 0]),
    ]
    weights = {"scale": [1, 2, 3], "w": [[4, 5, 6]], "limit": 1.0}
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, "N"])],
        [numpy_helper.from_array(np.float32(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("level", [LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_EXTENDED], ids=["plain", "optimized"])
@pytest.mark.parametrize("largest", [0.5, 2.0])
def test_a_model_with_branches_is_what_it_was(tmp_path: Path, level: Any, largest: float) -> None:
    source = branches()
    module = forge.load(written(source, tmp_path / "model.ort", level))
    assert (module.input_names, module.input_shapes, module.output_names) == (["x"], [("N", 3)], ["y"])
    feed = {"x": np.float32([[largest, 0.1, -0.3], [0.2, -largest, 0.0]])}
    np.testing.assert_allclose(
        outputs(module.to_bytes(), feed)[0], outputs(source.SerializeToString(), feed)[0], rtol=1e-6
    )


def test_a_convolution_that_its_optimizer_fused_is_written_out(tmp_path: Path) -> None:
    path = written(onnx.load(DIGITS), tmp_path / "model.ort")
    assert "FusedConv" in {node.op_type for node in convert(path, ()).model.graph.node}
    module = forge.load(path)
    assert {node.domain for node in module.mod.graph.node} == {""}
    images = np.load(DIGITS.parent / "evaluation.npz")["x"][:4]
    feed = {module.input_names[0]: images}
    np.testing.assert_allclose(outputs(module.to_bytes(), feed)[0], outputs(str(path), feed)[0], rtol=1e-4, atol=1e-5)


def test_a_file_that_is_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    content = written(branches(), tmp_path / "model.ort").read_bytes()
    damaged = tmp_path / "damaged.ort"
    for stop in (8, 60, len(content) // 2):
        damaged.write_bytes(content[:stop])
        with pytest.raises(ModelError, match="a damaged or cut one"):
            forge.load(damaged)
    draw = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(content)
        changed[draw.integers(8, len(content))] = draw.integers(256)
        damaged.write_bytes(changed)
        with suppress(ModelError):
            convert(damaged, ())
