"""The table by layer finds the layer that was made noisy, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from forge_pipeline.evaluation.layers import measure, worst
from forge_pipeline.evaluation.matching import matches
from forge_pipeline.evaluation.plot import layers_svg
from forge_pipeline.ir import ONNXModule

LAYERS = 5
WIDTH = 16


def chain(steps: Sequence[float] | None) -> ONNXModule:
    """A chain of dense layers; ``steps`` puts a quantizer of that step behind each."""
    lines, value = [], "x"
    for layer in range(LAYERS):
        lines.append(f"v{layer} = MatMul({value}, w{layer})")
        value = f"v{layer}"
        if steps is not None:
            lines.append(f"v{layer}_q = QuantizeLinear(v{layer}, step{layer}, zero)")
            lines.append(f"v{layer}_dq = DequantizeLinear(v{layer}_q, step{layer}, zero)")
            value = f"v{layer}_dq"
    lines.append(f"y = Identity({value})")
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>'
        f"main (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{ {' '.join(lines)} }}"
    )
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}" if node.op_type != "MatMul" else f"dense_{node.output[0]}"
    random = np.random.default_rng(3)
    for layer in range(LAYERS):
        rotation, _ = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))
        model.graph.initializer.append(numpy_helper.from_array(rotation.astype(np.float32), f"w{layer}"))
        if steps is not None:
            model.graph.initializer.append(numpy_helper.from_array(np.float32(steps[layer]), f"step{layer}"))
    if steps is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.int16(0), "zero"))
    onnx.checker.check_model(model, full_check=True)
    return ONNXModule(model)


def feeds(count: int = 16) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [{"x": random.standard_normal((1, WIDTH)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("noisy", range(LAYERS))
def test_the_layer_that_was_quantized_coarsely_is_named_first(noisy: int) -> None:
    steps = [0.001] * LAYERS
    steps[noisy] = 0.2
    table = measure(chain(None), chain(steps), feeds())
    (first,) = worst(table, 1)
    assert first.layer == f"dense_v{noisy}"
    assert first.noise_share > 95.0


def test_equal_layers_have_equal_shares_although_noise_grows_along_the_chain() -> None:
    table = measure(chain(None), chain([0.02] * LAYERS), feeds(200))
    dense = [row for row in table if row.operator.startswith("MatMul")]
    decibels = [row.sqnr_db for row in dense]
    assert decibels == sorted(decibels, key=lambda value: -(value or 0.0))
    assert [row.noise_share for row in dense] == pytest.approx([100 / LAYERS] * LAYERS, abs=3.0)


def test_a_layer_on_its_own_is_as_noisy_as_its_quantizer_wherever_it_stands() -> None:
    table = measure(chain(None), chain([0.1] * LAYERS), feeds(100))
    expected = -10 * np.log10(0.1**2 / 12)  # uniform rounding of values with variance 1
    assert [row.own_sqnr_db for row in table if row.layer != "x"] == pytest.approx([expected] * LAYERS, abs=0.5)


def test_channels_that_were_equalized_are_no_noise() -> None:
    reference, model = chain(None), chain([0.002] * LAYERS)
    plain = measure(reference, model, feeds(50))
    factors = np.float32(2.0) ** np.random.default_rng(9).integers(-6, 7, WIDTH)
    for tensor in model.mod.graph.initializer:
        weight = numpy_helper.to_array(tensor)
        if tensor.name in ("w1", "w2"):
            changed = weight * factors if tensor.name == "w1" else weight / factors[:, None]
            tensor.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), tensor.name))
        if tensor.name == "step1":  # a quantizer with a step for each channel follows the channels
            tensor.CopyFrom(numpy_helper.from_array((weight * factors).astype(np.float32), tensor.name))
        if tensor.name == "zero":
            model.mod.graph.initializer.append(numpy_helper.from_array(np.zeros(WIDTH, np.int16), "zeros"))
    for node in model.mod.graph.node:
        if "step1" in node.input:
            node.input[2] = "zeros"
    equalized = measure(reference, model, feeds(50))
    for before, after in zip(plain, equalized, strict=True):
        assert after.own_sqnr_db == pytest.approx(before.own_sqnr_db, abs=0.3)
        assert after.sqnr_db == pytest.approx(before.sqnr_db, abs=0.3)


def test_a_model_against_itself_has_no_noise_and_no_worst_layer() -> None:
    table = measure(chain(None), chain(None), feeds())
    assert [row.layer for row in table] == ["x", *(f"dense_v{layer}" for layer in range(LAYERS))]
    assert {(row.sqnr_db, row.noise_share) for row in table} == {(None, 0.0)}
    assert worst(table, 3) == []


def test_the_picture_points_at_the_layer_that_was_quantized_coarsely() -> None:
    steps = [0.01] * LAYERS
    steps[2] = 0.1
    rows = [asdict(row) for row in measure(chain(None), chain(steps), feeds())]
    picture = layers_svg(rows)
    assert picture == layers_svg(rows)
    space = "{http://www.w3.org/2000/svg}"
    groups = ElementTree.fromstring(picture).findall(f"{space}g")
    titles = [group.findtext(f"{space}title") for group in groups]
    assert titles == [row["layer"] for row in rows]
    red = [group for group in groups if group.find(f"{space}rect").get("class") == "worst"]  # type: ignore[union-attr]
    assert len(red) == 3
    widest = max(groups, key=lambda group: float(group.find(f"{space}rect").get("width", "")))  # type: ignore[union-attr]
    assert widest.findtext(f"{space}title") == "dense_v2"
    assert any("#1" in (text.text or "") for text in widest.findall(f"{space}text"))


def test_a_sequence_between_layers_has_no_row() -> None:
    model = ONNXModule(
        parser.parse_model(
            '<ir_version: 10, opset_import: ["": 20]> main (float[N, 6] x) => (float[N, 6] y) <int64[2] parts = {2, 4}>'
            "{ a = Neg(x) s = SplitToSequence <axis = 1> (a, parts) j = ConcatFromSequence <axis = 1> (s) y = Neg(j) }"
        )
    )
    values = [{"x": np.ones((1, 6), np.float32)}]
    kinds = [row.operator for row in measure(model, model, values)]
    assert kinds == ["Input", "Neg", "SplitToSequence+ConcatFromSequence", "Neg"]


def test_without_samples_there_is_no_table() -> None:
    assert measure(chain(None), chain([0.1] * LAYERS), []) == ()


def test_neither_model_is_changed() -> None:
    reference, model = chain(None), chain([0.1] * LAYERS)
    before = reference.to_bytes(), model.to_bytes()
    measure(reference, model, feeds(1))
    assert (reference.to_bytes(), model.to_bytes()) == before


def test_a_clipping_activation_that_became_part_of_its_quantizer_is_compared_in_its_place() -> None:
    reference = parser.parse_graph("g (float[N] x) => (float[N] y) { c = Neg(x) r = Relu(c) y = Neg(r) }")
    quantized = parser.parse_graph(
        "g (float[N] x) => (float[N] y) <float s = {0.1}, uint8 z = {0}>"
        "{ c = Neg(x) r_q = QuantizeLinear(c, s, z) r_dq = DequantizeLinear(r_q, s, z) y = Neg(r_dq) }"
    )
    assert matches(reference, quantized) == {"x": "x", "r": "r_dq", "y": "y"}


def test_values_are_compared_as_their_readers_see_them() -> None:
    reference = parser.parse_graph("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    quantized = parser.parse_graph(
        "g (float[N] x) => (float[N] y) <float s = {0.1}, uint8 z = {0}>"
        "{ x_q = QuantizeLinear(x, s, z) x_dq = DequantizeLinear(x_q, s, z) y = Neg(x_dq) }"
    )
    assert matches(reference, quantized) == {"x": "x_dq", "y": "y"}


def test_what_only_a_follower_reads_is_within_the_layer() -> None:
    graph = parser.parse_graph(
        "g (float[N] x) => (float[N] y) <float b = {1.0}>"
        "{ c = Neg(x) d = Add(c, b) e = Relu(d) f = Neg(e) g = Sigmoid(f) y = Mul(f, g) }"
    )
    assert set(matches(graph, graph)) == {"x", "e", "f", "g", "y"}  # f has two readers


def test_an_activation_is_shown_with_the_layer_that_it_follows() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> m (float[N, 4] x) => (float[M] y) <int64[1] all = {-1}>'
        "{ [one] c = Neg(x) r = Relu(c) s = Exp(r) t = Transpose(s) z = Tanh(t) y = Reshape(z, all) }"
    )
    sample = {"x": np.linspace(-1, 1, 4, dtype=np.float32)[None]}
    table = measure(ONNXModule(model), ONNXModule(model), [sample])
    assert [(row.layer, row.operator) for row in table] == [
        ("x", "Input"),
        ("one", "Neg+Relu"),
        ("s", "Exp+Transpose+2 more"),
    ]


def test_a_layer_in_half_precision_is_fed_half_precision() -> None:
    """Else a product of a float32 value and float16 weights has operands of two types."""
    head = '<ir_version: 10, opset_import: ["": 21]> main (float[N, 2] x) => (float[N, 2] y)'
    half = "x16 = Cast <to = 10> (x) v = Exp(x16) w16 = Cast <to = 10> (w) z = MatMul(v, w16) y = Cast <to = 1> (z)"
    exact, halved = (
        ONNXModule(parser.parse_model(f"{head} <float[2, 2] w = {{1, 2, 3, 4}}> {{ {body} }}"))
        for body in ("v = Exp(x) y = MatMul(v, w)", half)
    )
    samples = np.random.default_rng(0).uniform(-1, 1, (16, 1, 2)).astype(np.float32)
    rows = measure(exact, halved, [{"x": sample} for sample in samples])
    assert [row.operator for row in rows] == ["Input", "Exp", "MatMul"]
    assert all(row.own_sqnr_db is not None and 50 < row.own_sqnr_db < 100 for row in rows[1:])


def reduced(axes: str, *, quantized: bool) -> ONNXModule:
    """The doubled sum of x over all axes, or what is not zero of x; quantized in the middle."""
    value = "s_dq" if quantized else "s"
    pair = "s_q = QuantizeLinear(s, step, zero) s_dq = DequantizeLinear(s_q, step, zero)" if quantized else ""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>'
        f"main (float[N, 3] x) => (float{axes} y) {{ {MADE[axes]} {pair} y = Mul({value}, two) }}"
    )
    tensors = {"two": np.float32(2), "step": np.float32(0.1), "zero": np.int8(0)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in tensors.items())
    return ONNXModule(model)


MADE = {"": "s = ReduceSum<keepdims=0>(x)", "[2, M]": "i = NonZero(x) s = Cast<to=1>(i)"}


def test_a_value_without_dimensions_is_measured() -> None:
    x = {"x": np.full((1, 3), 0.41, np.float32)}
    table = measure(reduced("", quantized=False), reduced("", quantized=True), [x])
    assert table[-1].own_sqnr_db == pytest.approx(20 * np.log10(1.23 / 0.03), abs=0.1)


@pytest.mark.parametrize("batch", [0, 2])
def test_values_without_elements_are_no_noise(batch: int) -> None:
    x = {"x": np.zeros((batch, 3), np.float32)}
    assert measure(reduced("[2, M]", quantized=False), reduced("[2, M]", quantized=True), [x]) == ()
