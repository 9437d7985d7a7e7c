"""What cannot be compiled is refused at once, whole, and before anything is made of it; what can is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def _saved(path: Path, nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def _stages(out: Path) -> dict[str, str]:
    return {row["stage"]: row["result"] for row in json.loads((out / "manifest.json").read_text())["stages"]}


def test_every_reason_is_given_before_the_model_is_folded_or_quantized(forge: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["d"], name="first"),
        helper.make_node("RandomUniformLike", ["d"], ["y"], name="second"),
    ]
    done = forge("run", f"model.path={_saved(tmp_path / 'net.onnx', nodes)}", "quantize=dynamic", f"out={tmp_path}/out")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["load"]
    assert "found 2 node(s) that cannot (RandomNormalLike, RandomUniformLike)" in done.stderr
    assert "RandomNormalLike 'RandomNormalLike_0'" in done.stderr
    assert "RandomUniformLike 'RandomUniformLike_1'" in done.stderr


@pytest.mark.long
def test_what_simplifying_the_model_removes_is_no_reason_and_nothing_of_the_look_is_kept(
    forge: Any, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Det", ["w"], ["d"]), helper.make_node("Mul", ["x", "d"], ["y"])]
    weight = numpy_helper.from_array(np.diag([1.0, 2.0, 3.0]).astype(np.float32), "w")
    model, results = _saved(tmp_path / "net.onnx", nodes, weight), []
    for name in ("first", "second"):
        done = forge("run", f"model.path={model}", f"out={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        results.append(_stages(tmp_path / name))
    assert set(results[0].values()) == {"built"}
    assert {name for name, result in results[1].items() if result == "hit"} >= {"load", "fold", "quantize", "compile"}
