"""The fold stage: its configurations, its report, and what it promises to later stages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.stages.fold import Config, run
from tests.support.paths import ROOT

CONF = ROOT / "conf" / "fold"


def _config(name: str, **changes: Any) -> Config:
    return bind(Config, yaml.safe_load((CONF / f"{name}.yaml").read_text()) | changes, where="fold")


def _module() -> ONNXModule:
    random = np.random.default_rng(0)
    arrays = {"w": random.normal(size=(3, 2, 3, 3)), "g": random.normal(size=3), "b": random.normal(size=3)}
    arrays |= {"m": random.normal(size=3), "v": random.uniform(0.5, 1, 3)}
    nodes = [
        helper.make_node("Dropout", ["x"], ["d"]),
        helper.make_node("Conv", ["d", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
        helper.make_node("Relu", ["c"], ["unused"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, 3, 3])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    return ONNXModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("name", ["basic", "full"])
def test_folding_leaves_the_input_alone_and_reports_what_changed(name: str) -> None:
    model = _module()
    before = model.to_bytes()
    result = run(_config(name), model)
    assert model.to_bytes() == before
    assert [node.op_type for node in result.output.mod.graph.node] == ["Conv", "Relu"]
    report = json.loads(json.dumps(result.report))
    assert report["nodes"] == [5, 2]
    assert "fold-batchnorm" in [row["pass"] for row in report["history"]]
    assert report["unverified"] == {}
    assert report["overall"]["verified"]


def test_no_passes_give_back_the_model() -> None:
    model = _module()
    assert run(_config("none"), model).output is model


def test_verification_that_is_switched_off_is_reported() -> None:
    report = run(_config("basic", verify=None), _module()).report
    assert set(report["unverified"].values()) == {"verification is switched off"}
    assert report["overall"] is None


def test_a_misspelt_pass_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"(?s)fold.passes\[0\].*did you mean 'fold-batchnorm'"):
        run(_config("basic", passes=["fold-batch-norm"]), _module())


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_every_configuration_binds_and_keeps_the_interface(name: str) -> None:
    model = _module()
    output = run(_config(name), model).output
    onnx.checker.check_model(output.mod, full_check=True)
    assert list(output.mod.graph.input) == list(model.mod.graph.input)
    assert list(output.mod.graph.output) == list(model.mod.graph.output)


def test_sizes_that_an_exporter_left_to_be_computed_are_constants_by_default() -> None:
    """As torchvision's detectors pad an image: by floats that are made of its size."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 17]>
        padded (float[1, 3, 20, 20] x) => (float[a, b, c, d] y)
        {
            shape = Shape(x)
            side = Gather<axis=0>(shape, two)
            real = Cast<to=1>(side)
            steps = Div(real, eight)
            up = Ceil(steps)
            full = Mul(up, eight)
            whole = Cast<to=7>(full)
            more = Sub(whole, side)
            pads = Concat<axis=0>(before, more, more)
            y = Pad(x, pads)
        }""")
    arrays = {"two": np.array([2]), "before": np.zeros(6, np.int64), "eight": np.array([8], np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    folded = run(_config("basic"), ONNXModule(model)).output.mod
    assert [node.op_type for node in folded.graph.node] == ["Pad"]
    assert folded.graph.node[0].input[1] in {tensor.name for tensor in folded.graph.initializer}
