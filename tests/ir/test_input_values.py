"""Inputs that become constants by `model.values`: what they decide is folded away, what they cannot be is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import forge_pipeline as forge
from forge_pipeline.errors import ConfigError
from forge_pipeline.ir.input_values import with_values

SWITCH = """
<ir_version: 8, opset_import: ["" : 17]>
switch (float[N, 4] x, bool training, int64[1] rate) => (float[N, 4] y) {
    half = Constant <value = float {0.5}> ()
    kept = Dropout (x, half, training)
    number = Cast <to = 1> (rate)
    scaled = Mul (kept, number)
    y = If (training) <
        then_branch = noise () => (float[N, 4] a) { a = RandomNormalLike (scaled) },
        else_branch = plain () => (float[N, 4] b) { b = Neg (scaled) }
    >
}
"""


@pytest.fixture
def switch() -> onnx.ModelProto:
    return parser.parse_model(SWITCH)


def test_what_the_values_rule_out_is_not_compiled(switch: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(switch, tmp_path / "switch.onnx")
    module = forge.load(tmp_path / "switch.onnx", values={"training": False, "rate": 3})
    assert module.input_names == ["x"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    engine = forge.Engine(module.compile("host", output_path=tmp_path / "out") / "model_library.so")
    (y,) = engine(x)
    np.testing.assert_array_equal(y, -3 * x)


def test_without_them_the_refusal_names_the_option(switch: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(switch, tmp_path / "switch.onnx")
    with pytest.raises(forge.ForgeError, match=r"model\.values=\{training: "):
        forge.load(tmp_path / "switch.onnx").compile("host", output_path=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning", True, "an input of the model: x, training, rate"),
        ("training", 2, "numbers of its element type, bool"),
        ("rate", 1.5, "numbers of its element type, int64"),
        ("rate", "fast", "numbers of its element type, int64"),
        ("rate", [1, 2], r"an array of its shape, \[1\]"),
        ("x", 1.0, r"an array of its shape, \['N', 4\]"),
    ],
)
def test_refused(switch: onnx.ModelProto, name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        with_values(switch, {name: value})


def test_a_number_stands_for_every_element_and_replaces_a_default() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        "bias",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2, 3]) for name in ("x", "bias")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 3])],
        [helper.make_tensor("bias", TensorProto.FLOAT16, [2, 3], np.zeros(6))],
    )
    changed = with_values(helper.make_model(graph), {"bias": 1.5}).graph
    assert [value.name for value in changed.input] == ["x"]
    (bias,) = changed.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(bias), np.full((2, 3), 1.5, np.float16))


def test_lists_fill_open_extents(switch: onnx.ModelProto) -> None:
    (found,) = with_values(switch, {"x": [[1, 2, 3, 4], [5, 6, 7, 8]]}).graph.initializer
    assert list(found.dims) == [2, 4]
