"""Looking at a model: figures that can be checked by hand, a picture that is well formed, nothing run."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.inspect import inspect
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.display.svg import draw
from tests.support.paths import SHARED

REAL = SHARED / "models"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\x00&\"'"


def weight(name, *shape):
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


@pytest.fixture
def saved(tmp_path):
    """Save a small network (convolution, skip connection, matrix product) whose names try to break out."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], HOSTILE, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Relu", ["r"], ["r2"]),
        helper.make_node("Add", ["r2", "c"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y<1>"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y<1>", TensorProto.FLOAT, ["N", 10])],
        [weight("k", 4, 3, 3, 3), weight("w", 256, 10)],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=10, opset_imports=opset).SerializeToString())
    return path


def test_the_figures_are_right(saved):
    described = inspect(Source(saved))
    conv, matmul = 4 * 8 * 8 * 3 * 3 * 3, 256 * 10
    assert [layer["macs"] for layer in described["layers"]] == [conv, 0, 0, 0, 0, matmul]
    assert described["macs"] == conv + matmul
    assert described["parameters"] == 4 * 27 + 2560
    assert described["weight_bytes"] == 4 * described["parameters"]
    assert described["weight_dtypes"] == {"float32": described["weight_bytes"]}
    assert described["operators"] == {"Add": 1, "Conv": 1, "Flatten": 1, "MatMul": 1, "Relu": 2}
    assert described["layers"][0]["shape"] == ["N", 4, 8, 8]
    assert described["layers"][0]["name"] == HOSTILE
    assert described["layers"][3]["reads"] == ["v2", "v0"]
    assert described["fingerprint"] == ONNXModule.from_file(saved).fingerprint
    assert described["quantized"] is False
    json.loads(canonical_json(described))


def test_shapes_are_expressions_and_what_they_must_keep_is_said(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Concat", ["x", "z"], ["j"], axis=3),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "height", "width"]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 3, "rows", 4]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("c", "j")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight("k", 4, 3, 4, 4)])
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    described = inspect(Source(path))
    shapes = {value["name"]: value["shape"] for value in described["outputs"]}
    assert shapes == {"c": ["n", 4, "floor(height/2)", "floor(width/2)"], "j": ["n", 3, "height", "width + 4"]}
    assert [demand["holds"] for demand in described["demands"]] == [
        "height - 2 >= 0",
        "width - 2 >= 0",
        "height - rows == 0",
    ]
    assert described["demands"][2]["because"].endswith("height is axis 2 of input 'x'; rows is axis 2 of input 'z'")


def test_the_picture_is_well_formed_and_holds_every_node(saved):
    picture = draw(inspect(Source(saved)))
    root = ElementTree.fromstring(picture)
    assert len(root.findall(f".//{SVG}rect")) == 8  # six nodes, an input and an output
    assert root.findall(f".//{SVG}script") == []
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert titles[1].startswith("</text><script>alert(1)</script>\\x00&\"'\n")


def test_a_picture_stays_inside_its_frame_and_boxes_do_not_overlap(saved):
    root = ElementTree.fromstring(draw(inspect(Source(saved))))
    boxes = [tuple(float(rect.get(key)) for key in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")]
    for x, y, width, height in boxes:
        assert 0 <= x <= float(root.get("width")) - width
        assert 0 <= y <= float(root.get("height")) - height
    for index, (x, y, width, _) in enumerate(boxes):
        assert all(y != other[1] or abs(x - other[0]) >= width for other in boxes[index + 1 :])


def test_the_same_model_gives_the_same_description_and_picture(saved):
    first, second = inspect(Source(saved)), inspect(Source(saved))
    assert canonical_json(first) == canonical_json(second)
    assert draw(first) == draw(second)


def test_what_cannot_be_loaded_cannot_be_inspected(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"hello")
    with pytest.raises(ModelError, match="found a text file"):
        inspect(Source(tmp_path / "m.onnx"))


@pytest.mark.parametrize("path", sorted(REAL.glob("*/*.onnx")), ids=lambda path: path.stem)
def test_a_real_model_can_be_inspected_and_drawn(path):
    described = inspect(Source(path))
    assert ElementTree.fromstring(draw(described)).tag == f"{SVG}svg"
    if path.stem.startswith("squeezenet"):
        assert described["macs"] == 349_151_936
        assert described["parameters"] == 1_235_496
