"""Linear operators in a row, and pointwise convolutions behind images that were enlarged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from forge_pipeline.passes import VerifySettings

BOTH = ({"repeat": ["mix-before-resize", "merge-linear"]},)


def _normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def _resize(name: str, result: str, sizes: str = "", scales: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Resize", [name, "", scales, sizes], [result], **{"mode": "linear"} | attributes)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_convolution_or_product_and_one_that_mixes_its_channels_are_one(
    data: st.DataObject, model: Any, run_passes: Any, operators: Any
) -> None:
    channels, inner, outer = (data.draw(st.integers(1, 6)) for _ in range(3))
    kernel, pad = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1))
    biases = data.draw(st.tuples(st.booleans(), st.booleans()))
    constants = {"v": _normal(inner, channels, kernel, kernel), "w": _normal(outer, inner, 1, 1)}
    inputs = [["x", "v"], ["c", "w"]]
    for own, name, size, has_bias in zip(inputs, ("a", "b"), (inner, outer), biases, strict=True):
        if has_bias:
            constants[name] = _normal(size)
            own.append(name)
    nodes = [
        helper.make_node("Conv", inputs[0], ["c"], pads=[pad] * 4, strides=[data.draw(st.integers(1, 2))] * 2),
        helper.make_node("Conv", inputs[1], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [2, channels, 7, 7]}, ["y"], constants), *BOTH)
    first = channels * kernel * kernel
    assert operators(outcome.model) == ["Conv"] * (1 if first * outer < first * inner + inner * outer else 2)
    assert outcome.unverified == {}


@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize("biases", ["", "a", "b", "ab"])
@pytest.mark.parametrize("axis", [0, -1])
def test_tokens_that_become_an_image_are_multiplied_once(
    batch: int | str, biases: str, axis: int, model: Any, run_passes: Any, operators: Any
) -> None:
    constants = {"v": _normal(8, 6), "w": _normal(5, 6, 1, 1), "s": np.array([axis, 6, 3, -1 if axis == 0 else 4])}
    constants |= {name: _normal(6 if name == "a" else 5) for name in biases}
    tokens = "p" if "a" in biases else "m"
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["m"]),
        *([helper.make_node("Add", ["a", "m"], ["p"])] if "a" in biases else []),
        helper.make_node("Transpose", [tokens], ["t"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["t", "s"], ["i"]),
        helper.make_node("Conv", ["i", "w", *(["b"] if "b" in biases else [])], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [batch, 12, 8]}, ["y"], constants), *BOTH)
    assert operators(outcome.model) == ["MatMul", *(["Add"] if biases else []), "Transpose", "Reshape"]
    assert outcome.unverified == {}


def test_products_in_a_row_are_one_whatever_rows_are_called_between(
    model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "p"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    constants = {"u": _normal(4, 8), "v": _normal(8, 8), "w": _normal(8, 3), "p": _normal(1, 8), "s": np.array([-1, 8])}
    outcome = run_passes(model(nodes, {"x": [2, 3, 4]}, ["y"], constants), *BOTH)
    assert sorted(operators(outcome.model)) == ["Add", "MatMul", "Reshape"]
    assert outcome.unverified == {}


def test_weights_are_multiplied_in_one_order_on_every_machine(model: Any, run_passes: Any) -> None:
    large = np.float32(1e12) * _normal(5, 150)  # both halves cancel, and what rounding left decides
    first, second = np.concatenate([large, -large[:, ::-1]], axis=1), _normal(150, 4)
    second = np.concatenate([second, second[::-1]])
    nodes = [helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    settings = VerifySettings(rtol=1e-5, atol=1e9, samples=1, seed=0, dims={})
    constants = {"v": first, "w": second}
    outcome = run_passes(model(nodes, {"x": [2, 5]}, ["y"], constants), *BOTH, settings=settings)
    (made,) = (numpy_helper.to_array(tensor) for tensor in outcome.model.graph.initializer if "merged" in tensor.name)
    for row, column in np.ndindex(made.shape):
        total = 0.0
        for left, right in zip(first[row], second[:, column], strict=True):
            total += float(left) * float(right)
        assert made[row, column] == np.float32(total)


@pytest.mark.parametrize(
    ("between", "weight", "extra"),
    [
        pytest.param([], (2, 8), [], id="fewer channels between than around"),
        pytest.param([("Relu", ["a"], ["b"], {})], (8, 8), [], id="not linear"),
        pytest.param([("Add", ["a", "rows"], ["b"], {})], (8, 8), [], id="a row is no bias"),
        pytest.param([("Reshape", ["a", "s"], ["b"], {})], (4, 8), [], id="channels are parted"),
        pytest.param([], (8, 8), ["a"], id="an output between"),
    ],
)
def test_what_is_no_row_or_no_gain_stays(
    between: list[Any], weight: tuple[int, int], extra: list[str], model: Any, run_passes: Any, operators: Any
) -> None:
    inner = weight[0] if not any(entry[0] == "Reshape" for entry in between) else 8
    nodes = [helper.make_node("MatMul", ["x", "v"], ["a"])]
    nodes += [helper.make_node(op, inputs, outputs, **attributes) for op, inputs, outputs, attributes in between]
    nodes.append(helper.make_node("MatMul", [nodes[-1].output[0], "w"], ["y"]))
    constants = {"v": _normal(8, inner), "w": _normal(*weight), "rows": _normal(6, 1), "s": np.array([12, 4])}
    made = model(nodes, {"x": [6, 8]}, ["y", *extra], constants)
    assert operators(run_passes(made, *BOTH).model) == operators(made)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_pointwise_convolution_comes_before_what_enlarges_its_image(
    data: st.DataObject, model: Any, run_passes: Any, operators: Any
) -> None:
    opset = data.draw(st.sampled_from([11, 13, 17, 18, 20]))
    batch = data.draw(st.sampled_from([1, 2] if opset < 18 else [2, "batch"]))
    attributes = data.draw(
        st.sampled_from(
            [
                {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
                {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
                {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            ]
        )
    )
    constants = {"w": _normal(3, 5, 1, 1), "b": _normal(3), "none": np.zeros(0, np.float32)}
    if data.draw(st.booleans()) or batch == "batch":
        constants["factors"] = np.array([1, 1, 2, 3], np.float32)
        resize = helper.make_node("Resize", ["x", "none", "factors"], ["r"], **attributes)
    else:
        constants["sizes"] = np.array([batch, 5, 9, 8], np.int64)
        resize = helper.make_node("Resize", ["x", "none", "none", "sizes"], ["r"], **attributes)
    biased = data.draw(st.booleans())
    conv = helper.make_node("Conv", ["r", "w", *(["b"] if biased else [])], ["y"])
    outcome = run_passes(model([resize, conv], {"x": [batch, 5, 4, 3]}, ["y"], constants, opset=opset), *BOTH)
    assert operators(outcome.model) == ["Conv", "Resize"]
    assert outcome.unverified == {}


def test_images_of_any_size_that_are_enlarged_by_a_factor_are_mixed_before(
    model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [
        _resize("x", "r", scales="f"),
        helper.make_node("Concat", ["r", "s"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "w"], ["y"]),
    ]
    factors = np.array([1, 1, 2, 2], np.float32)
    inputs = {"x": ["batch", 9, "height", "width"], "s": ["batch", 1, "twice_height", "twice_width"]}
    made = model(nodes, inputs, ["y"], {"f": factors, "w": _normal(4, 10, 1, 1)}, opset=13)
    sizes = VerifySettings(
        rtol=1e-5, atol=1e-6, samples=4, seed=0, dims={"height": 3, "width": 5, "twice_height": 6, "twice_width": 10}
    )
    outcome = run_passes(made, *BOTH, settings=sizes)
    assert sorted(operators(outcome.model)) == ["Add", "Conv", "Conv", "Resize"]
    assert outcome.unverified == {}


@pytest.mark.parametrize("opset", [13, 18])
def test_tokens_become_an_image_of_any_size_and_are_enlarged_to_another(
    opset: int, model: Any, run_passes: Any, operators: Any
) -> None:
    """A SegFormer's decoder as PyTorch exports it: every size is computed from the shape of an image."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "c"], ["s"], strides=[2, 2], pads=[1] * 4),
        node("Shape", ["s"], ["ss"]),
        *(node("Slice", ["ss", f"i{at}", f"i{at + 1}"], [f"s{at}"]) for at in (0, 2, 3)),
        node("Concat", ["s0", "n8", "open"], ["flat"], axis=0),
        node("Reshape", ["s", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "v"], ["m"]),
        node("Add", ["m", "a"], ["p"]),
        node("Transpose", ["p"], ["u"], perm=[0, 2, 1]),
        node("Concat", ["s0", "n12", "s2", "s3"], ["square"], axis=0),
        node("Reshape", ["u", "square"], ["i"]),
        node("Shape", ["i"], ["si"]),
        node("Slice", ["si", "i0", "i2"], ["channels"]),
        node("Shape", ["x"], ["sx"]),
        node("Slice", ["sx", "i2", "i4"], ["pixels"]),
        node("Concat", ["channels", "pixels"], ["sizes"], axis=0),
        _resize("i", "r", sizes="sizes"),
        node("Concat", ["x", "r"], ["j"], axis=1),
        node("Conv", ["j", "w"], ["y"]),
    ]
    constants = {"c": _normal(8, 2, 3, 3), "v": _normal(8, 12), "a": _normal(12), "w": _normal(4, 14, 1, 1)}
    constants |= {"n8": np.array([8]), "n12": np.array([12]), "open": np.array([-1])}
    constants |= {f"i{at}": np.array([at]) for at in range(5)}
    image = ["batch", 2, "height", "width"]
    made = model(nodes, {"x": image}, {"y": ["batch", 4, "height", "width"]}, constants, opset=opset)
    outcome = run_passes(made, {"repeat": ["mix-before-resize", "merge-linear", "remove-dead"]})
    found = [each for each in operators(outcome.model) if each not in ("Shape", "Slice", "Concat")]
    assert sorted(found) == sorted(
        ["Conv", "Reshape", "Transpose", "MatMul", "Add", "Transpose", "Reshape", "Resize", "Conv", "Add"]
    )
    assert [8, 4] in [list(tensor.dims) for tensor in outcome.model.graph.initializer]  # 12 channels are not made
    assert outcome.unverified == {}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("large", [0, 1, 2])
def test_images_that_were_joined_are_added_up(
    opset: int, biased: bool, large: int, model: Any, run_passes: Any, operators: Any
) -> None:
    sides, inputs, nodes, joint = [2, 4, *[8] * large], {}, [], []
    widths = [12, 14, *[2 if large == 1 else 20] * large]
    for index, (side, width) in enumerate(zip(sides, widths, strict=True)):
        inputs[f"x{index}"] = [1, width, side, side]
        nodes += [_resize(f"x{index}", f"r{index}", sizes=f"s{index}")] if side != 8 else []
        joint.append(f"r{index}" if side != 8 else f"x{index}")
    constants: dict[str, Any] = {f"s{index}": np.array([1, widths[index], 8, 8]) for index in range(2)}
    constants |= {"w": _normal(5, sum(widths), 1, 1), "b": _normal(5)}
    nodes.append(helper.make_node("Concat", joint[::-1], ["j"], axis=1))
    nodes.append(helper.make_node("Conv", ["j", "w", *(["b"] if biased else [])], ["y"]))
    made = model(nodes, inputs, ["y"], constants, opset=opset)
    outcome = run_passes(made, "mix-before-resize")
    found = sorted(operators(outcome.model))
    if large == 2:
        assert found == sorted(operators(made))  # more than 0.4 of the work would be left
        return
    assert found == ["Add"] * (1 + large) + ["Conv"] * (2 + large) + ["Resize"] * 2
    assert outcome.unverified == {}


@pytest.mark.parametrize(
    ("attributes", "sizes", "weight", "conv"),
    [
        pytest.param({}, [1, 5, 2, 2], (3, 5, 1, 1), {}, id="fewer pixels"),
        pytest.param({}, [1, 5, 8, 8], (9, 5, 1, 1), {}, id="more channels to enlarge"),
        pytest.param({}, [1, 5, 8, 8], (3, 5, 3, 3), {}, id="neighbours"),
        pytest.param({}, [1, 5, 8, 8], (3, 5, 1, 1), {"strides": [2, 2]}, id="strides"),
        pytest.param({}, [1, 5, 8, 8], (3, 5, 1, 1), {"pads": [1] * 4}, id="pads"),
        pytest.param({}, [1, 5, 8, 8], (5, 1, 1, 1), {"group": 5}, id="groups"),
        pytest.param({}, [1, 10, 8, 8], (3, 10, 1, 1), {}, id="channels are enlarged"),
        pytest.param(
            {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0},
            [1, 5, 8, 8],
            (3, 5, 1, 1),
            {},
            id="pixels that are made up",
        ),
    ],
)
def test_a_convolution_stays_behind_another_resize(
    attributes: dict[str, Any], sizes: list[int], weight: tuple[int, ...], conv: dict[str, Any], model: Any,
    run_passes: Any, operators: Any,
) -> None:  # fmt: skip
    constants = {"w": _normal(*weight), "s": np.array(sizes), "roi": np.array([0, 0, 0, 0, 1, 1, 1.5, 1.5], np.float32)}
    resize = helper.make_node("Resize", ["x", "roi", "", "s"], ["r"], mode="linear", **attributes)
    made = model([resize, helper.make_node("Conv", ["r", "w"], ["y"], **conv)], {"x": [1, 5, 4, 4]}, ["y"], constants)
    assert operators(run_passes(made, *BOTH).model) == ["Resize", "Conv"]


def test_a_resize_to_the_size_that_is_there_goes(model: Any, run_passes: Any, operators: Any) -> None:
    made = model([_resize("x", "r", sizes="s"), helper.make_node("Relu", ["r"], ["y"])], {"x": [1, 3, 4, 4]}, ["y"],
                 {"s": np.array([1, 3, 4, 4])})  # fmt: skip
    assert operators(run_passes(made, "remove-identities").model) == ["Relu"]


def test_a_resize_to_an_open_size_that_is_there_goes(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Relu", ["x"], ["i"]),
        _resize("i", "y", sizes="shape"),
    ]
    made = model(nodes, {"x": ["batch", 3, "height", "width"]}, ["y"], {})
    assert operators(run_passes(made, "remove-identities", "remove-dead").model) == ["Relu"]
