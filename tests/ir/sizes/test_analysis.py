"""Sizes of whole graphs, against what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import analyse
from tests.support.sizes import computed, differences, extents_of, holds


def model(text, opset=18):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def single(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


HEADS = model("""g (float[batch, seq, 64] x) => (y) <int64[1] heads = {4}, int64[1] left = {-1}, int64 zero = {0},
    int64 one = {1}, int64[1] front = {0}> {
  s = Shape(x)
  b = Gather(s, zero)
  t = Gather(s, one)
  bu = Unsqueeze(b, front)
  tu = Unsqueeze(t, front)
  target = Concat <axis = 0> (bu, tu, heads, left)
  r = Reshape(x, target)
  q = Transpose <perm = [0, 2, 1, 3]> (r)
  k = Transpose <perm = [0, 2, 3, 1]> (r)
  scores = MatMul(q, k)
  weights = Softmax(scores)
  o = MatMul(weights, q)
  back = Transpose <perm = [0, 2, 1, 3]> (o)
  width = Mul(heads, heads)
  four = Mul(width, heads)
  flat = Concat <axis = 0> (bu, tu, four)
  joined = Reshape(back, flat)
  y = Add(joined, x)
}""")


def test_what_a_node_shows_of_sizes_holds_for_its_own_result():
    sizes = analyse(model("g (float[n, n] x, float[n, 4] y) => (z) { z = Add (x, y) }"))
    assert sizes.shape("z") == sizes.shape("x") == (4, 4)


def test_a_range_goes_in_steps_of_a_size():
    text = """g (float[n, m] x) => (y, z) <int64 zero = {0}, int64 one = {1}> {
      all = Size (x)  s = Shape (x)  m = Gather (s, one)
      y = Range (zero, all, m)  less = Neg (m)  back = Neg (all)  z = Range (zero, back, less)
    }"""
    sizes = analyse(model(text))
    assert sizes.shape("y") == sizes.shape("z") == (e.extent("n"),)
    assert differences(model(text), *({"x": single(n, m)} for n, m in ((1, 1), (2, 7), (3, 2)))) == []


def test_sizes_that_go_through_shape_arithmetic_come_back_as_they_were():
    sizes = analyse(HEADS)
    batch, seq = e.extent("batch"), e.extent("seq")
    assert sizes.shape("scores") == (batch, 4, seq, seq)
    assert sizes.shape("y") == (batch, seq, 64)
    assert sizes.constraints == ()
    assert differences(HEADS, *({"x": single(b, t, 64)} for b, t in ((1, 1), (2, 7), (3, 5)))) == []


SHAPES = {
    "slices count from both ends": """g (float[n, m] x) => (y) <int64[2] starts = {-3, 9223372036854775807},
        int64[2] ends = {9223372036854775807, -9223372036854775807}, int64[2] axes = {0, 1}, int64[2] steps = {2, -2}>
        { y = Slice(x, starts, ends, axes, steps) }""",
    "slices between sizes": """g (float[n, m] x) => (y) <int64[1] one = {1}, int64[1] zero = {0}> {
        s = Shape(x) a = Gather(s, zero) h = Sub(a, one) y = Slice(x, one, h, zero) }""",
    "an exact half": """g (float[n, m] x) => (y) <int64[1] two = {2}, int64 left = {-1}, int64[1] minus = {-1}> {
        w = Concat <axis = 1> (x, x) s = Shape(w) h = Div(s, two) k = Gather(h, left) u = Unsqueeze(k, zero)
        t = Concat <axis = 0> (minus, u) y = Reshape(w, t) zero = Constant <value_ints = [0]> () }""",
    "ranges": """g (float[n, m] x) => (y, z) <int64 one = {1}, int64 three = {3}, int64 zero = {0}> {
        s = Shape(x) a = Gather(s, zero) b = Mul(a, three) y = Range(zero, b, one) z = Range(one, b, three) }""",
    "a range of floats": """g (float[n, m] x) => (y) <int64 zero = {0}, float one = {1.0}, float none = {0.0}> {
        s = Shape(x) a = Gather(s, zero) f = Cast <to = 1> (a) y = Range(none, f, one) }""",
    "masks of comparisons": """g (float[n, m] x) => (y) <int64[1] one = {1}, int64[2] wanted = {-1, 4}> {
        s = Shape(x) same = Equal(wanted, minus) target = Where(same, s, wanted) many = GreaterOrEqual(s, four)
        few = Not(many) both = And(many, few) c = Cast <to = 7> (both) d = Add(c, target) y = ConstantOfShape(d)
        minus = Constant <value_ints = [-1]> () four = Constant <value_int = 4> () }""",
    "reductions of shapes": """g (float[n, m] x) => (y) {
        s = Shape(x) p = ReduceProd <keepdims = 0> (s) q = ReduceMax <keepdims = 1> (s) r = ReduceSum <keepdims = 1> (s)
        t = Concat <axis = 0> (q, r) y = ConstantOfShape(t) }""",
    "rounded sizes": """g (float[1, 3, n, m] x) => (y) <float[4] scales = {1.0, 1.0, 2.0, 0.3}>
        { y = Resize(x, "", scales) }""",
    "windows": """g (float[1, 2, n, m] x, float[4, 2, 3, 3] w) => (y, p, q) {
        y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
        p = MaxPool <kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1> (y)
        q = AveragePool <kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"> (y) }""",
    "transposed windows": """g (float[1, 2, n, m] x, float[2, 4, 3, 3] w) => (y) {
        y = ConvTranspose <pads = [1, 1, 0, 0], strides = [2, 3], output_padding = [1, 0],
            dilations = [1, 2]> (x, w) }""",
    "pads made of sizes": """g (float[n, m] x) => (y) <int64[2] none = {0, 0}, int64[2] eight = {8, 8}> {
        s = Shape(x) h = Mod(s, eight) r = Sub(eight, h) t = Mod(r, eight)
        p = Concat <axis = 0> (none, t) y = Pad(x, p) }""",
    "parts of an axis": """g (float[n, m] x) => (a, b, c) { w = Concat <axis = 1> (x, x, x, x)
        a, b, c = Split <axis = 1, num_outputs = 3> (w) }""",
    "tiles and expansions": """g (float[n, m] x) => (y, z) <int64[2] two = {2, 3}, int64[3] to = {5, 1, 1}>
        { y = Tile(x, two) z = Expand(x, to) }""",
    "scatter over a shape": """g (float[n, m] x) => (y) <int64[1] at = {1}, int64[1] to = {7}> {
        s = Shape(x) t = ScatterElements <axis = 0> (s, at, to) y = ConstantOfShape(t) }""",
    "where data decides": """g (float[n, m] x) => (y, u) <float half = {3.0}> {
        c = Greater(x, half) p = NonZero(c) y = Transpose(p) g = GatherND(x, y) u = Add(g, g) }""",
    "clipped sizes": """g (float[n, m] x) => (y) <int64 low = {2}, int64 high = {6}> {
        s = Shape(x) t = Clip(s, low, high) y = ConstantOfShape(t) }""",
    "clipped sizes in floats, as padding to a multiple has them": """g (float[n, m] x) => (y)
        <float low = {0.0}, float half = {0.5}, float one = {1.0}> {
        s = Shape(x) f = Cast <to = 1> (s) h = Mul(f, half) c = Ceil(h) d = Sub(c, one) t = Clip(d, low)
        i = Cast <to = 7> (t) y = ConstantOfShape(i) }""",
    "products": """g (float[n, m] x, float[m, 5] w) => (y, z) { y = MatMul(x, w) z = Gemm <transA = 1> (x, y) }""",
    "one letter, one size": """g (float[n, m] x) => (y) { y = Einsum <equation = "ij,kj->ik"> (x, x) }""",
}


def feeds_for(graph, n, m):
    extents = {"n": n, "m": m}
    return {
        value.name: single(*(dim.dim_value or extents[dim.dim_param] for dim in value.type.tensor_type.shape.dim)) % 7
        for value in graph.graph.input
    }


@pytest.mark.parametrize("name", SHAPES)
def test_every_value_is_what_the_runtime_computes(name):
    graph = model(SHAPES[name])
    sort(graph)
    calls = [feeds_for(graph, n, m) for n, m in ((4, 4), (5, 9), (13, 6))]
    assert differences(graph, *calls) == []


def sort(graph):
    """Bring constants to the front: the text has them where they read best."""
    nodes = sorted(graph.graph.node, key=lambda node: node.op_type != "Constant")
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.graph.node[:]
    graph.graph.node.extend(copies)


def test_two_sizes_are_not_taken_to_differ_because_their_names_do():
    graph = model("g (float[n] x, float[m] y) => (z) { a = Shape(x) b = Shape(y) z = Equal(a, b) }")
    (entry,) = analyse(graph).values["z"].contents.tolist()
    assert e.evaluate(entry, {"n": 3, "m": 3}) == 1
    assert e.evaluate(entry, {"n": 3, "m": 4}) == 0


def test_sizes_that_must_agree_become_one_and_are_demanded():
    graph = model("g (float[n, k] x, float[m, k] y) => (z, s) { z = Add(x, y) s = Shape(y) }")
    sizes = analyse(graph)
    assert sizes.shape("z") == sizes.shape("y") == (e.extent("n"), e.extent("k"))
    assert sizes.values["s"].contents.tolist() == [e.extent("n"), e.extent("k")]
    (constraint,) = sizes.constraints
    assert "Add" in constraint.text
    assert "n" in constraint.text
    assert "m" in constraint.text
    assert sizes.axes["m"] == (("y", 0),)
    assert sizes.explained(constraint) == (
        "Add: operands differ in an extent (n and m); m is axis 0 of input 'y'; n is axis 0 of input 'x'"
    )
    assert holds(sizes, {"n": 4, "m": 4, "k": 2})
    assert not holds(sizes, {"n": 4, "m": 1, "k": 2})


def test_what_must_agree_is_used_before_and_behind():
    graph = model("""g (float[n] x, float[m] y) => (t, z) { a = Concat <axis = 0> (x, y) z = Add(x, y) s = Shape(a)
        h = Div(s, two) u = Concat <axis = 0> (two, h) t = Reshape(a, u) two = Constant <value_ints = [2]> () }""")
    sort(graph)
    assert differences(graph, *({"x": single(n), "y": single(n)} for n in (1, 4, 5))) == []


def test_a_slice_of_a_table_says_how_long_a_sequence_may_be():
    graph = model(
        """g (float[n] x) => (y) <float[512] table = {0.0}> { s = Shape(x) t = Slice(table, zero, s, zero)
        y = Add(t, x) zero = Constant <value_ints = [0]> () }""".replace(" = {0.0}", "")
    )
    del graph.graph.initializer[:]
    graph.graph.initializer.append(onnx.numpy_helper.from_array(single(512), "table"))
    sort(graph)
    sizes = analyse(graph)
    assert sizes.shape("y") == (e.extent("n"),)
    (constraint,) = sizes.constraints
    assert (constraint.size, constraint.at_least) == (512 - e.extent("n"), True)
    assert differences(graph, {"x": single(3)}, {"x": single(512)}) == []


def test_a_window_that_must_fit_settles_what_was_computed_before_it():
    graph = model("""g (float[1, 1, n] x, float[1, 1, 3] w) => (c, d) <int64 one = {1}, int64 four = {4},
        int64 axis = {2}> {
        s = Shape(x) a = Gather(s, axis) b = Sub(a, one) h = Div(b, four) d = Range(zero, h, one)
        c = Conv(x, w) zero = Constant <value_int = 0> () }""")
    sort(graph)
    sizes = analyse(graph)
    assert sizes.shape("d") == (e.floordiv(e.extent("n") - 1, 4),)
    assert [str(constraint.size) for constraint in sizes.constraints] == ["n - 3"]


def test_sizes_that_never_agree_are_refused():
    graph = model("g (float[3] x, float[4] y) => (z) { z = Add(x, y) }")
    with pytest.raises(ModelError, match=r"Add: operands differ in an extent \(3 and 4\)"):
        analyse(graph)


LAYER = {1: (1, 16, 8), 2: (1, 16, 4), 3: (1, 32), 5: (1, 2, 4), 6: (1, 2, 4), 7: (1, 12)}
"""Weights, biases, states and peepholes of an LSTM of 4, for a batch of 2."""


def lstm(layer):
    names = {index: f"i{index}" for index in layer}
    node = helper.make_node("LSTM", ["x", *(names.get(i, "") for i in range(1, 8))], ["y"], hidden_size=4)
    shapes = {"x": ("steps", 2, 8)} | {names[index]: shape for index, shape in layer.items()}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "g", values, [result]))


def test_a_recurrence_of_one_width_is_taken():
    assert analyse(lstm(LAYER)).shape("y") == (e.extent("steps"), 1, 2, 4)


@pytest.mark.parametrize(
    ("index", "shape", "axis"),
    [(1, (1, 12, 8), 1), (2, (1, 12, 4), 1), (3, (1, 24), 1), (5, (2, 2, 4), 0), (6, (1, 2, 8), 2), (7, (1, 24), 1)],
)
def test_weights_and_states_of_another_width_than_the_recurrence_are_refused(index, shape, axis):
    with pytest.raises(ModelError, match=f"LSTM: axis {axis} of input {index} does not go with the weights"):
        analyse(lstm(LAYER | {index: shape}))


def test_an_even_size_is_never_an_odd_one():
    graph = model("g (float[n] x, float[3] y) => (z) { w = Concat <axis = 0> (x, x) z = Add(w, y) }")
    with pytest.raises(ModelError, match=r"Add: operands differ in an extent \(2\*n and 3\)"):
        analyse(graph)


def test_a_name_of_the_file_stands_for_an_extent_that_has_none():
    graph = model("g (float[n] x, float[batch] y) => (z) { z = Add(x, y) }")
    graph.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    sizes = analyse(graph)
    assert sizes.shape("x") == sizes.shape("z") == (e.extent("batch"),)


def test_an_extent_that_is_what_another_lacks_bounds_the_other():
    graph = model(
        "g (float[n] x, float[m] y, float[5] w) => (z, r) { a = Concat <axis = 0> (x, w) z = Add(a, y) r = Relu(y) }"
    )
    sizes = analyse(graph)
    assert sizes.shape("r") == (e.extent("n") + 5,)
    assert holds(sizes, {"n": 2, "m": 7})
    assert not holds(sizes, {"n": 2, "m": 4})


@pytest.mark.parametrize(
    ("dims", "wanted"),
    [
        (["n", 0, -1, None], "(n, x_1, x_2, x_3)"),
        (["n", "2*n", "n + m", "m"], "(n, 2*n, m + n, m)"),
        (["h", "floor(h/2)", "floor(h/2 - 1/2) + 1", 7], "(h, floor(h/2), floor((h + 1)/2), 7)"),
        (["s0", "s0 + s1", "Max(s0, 4)", "a-b"], "(s0, 's0 + s1', max(s0 - 4, 0) + 4, 'a-b')"),
        (["batch size", "unk__1", "x_1", -1], "('batch size', unk__1, x_1, x_3)"),
        (["x_1", 0, "?", "9"], "(x_1, x_1_2, '?', 9)"),
    ],
)
def test_inputs_have_extents_of_their_own_where_a_file_leaves_them_open(dims, wanted):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [0] * 4)
    for dim, stated in zip(value.type.tensor_type.shape.dim, dims, strict=True):
        dim.Clear()
        if isinstance(stated, int):
            dim.dim_value = stated
        elif stated:
            dim.dim_param = stated
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    sizes = analyse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert str(sizes.shape("y")) == wanted


def test_without_assumptions_an_open_extent_may_be_broadcast():
    graph = model("""g (float[n, k] x, float[m, k] y, float[9, k] z) => (a, b, c) {
        a = Add(x, y) b = Add(x, z) t = Transpose(y) c = MatMul(x, t) }""")
    sizes = analyse(graph, assuming=False)
    rows, columns = sizes.shape("a")
    assert e.names(rows) <= set(sizes.bounds_of_data)
    assert columns == e.extent("k")
    assert sizes.shape("b") == (9, e.extent("k"))  # whatever n is: 9, or 1
    assert sizes.shape("c") == (e.extent("n"), e.extent("m"))
    assert differences(graph, {"x": single(9, 2), "y": single(9, 2), "z": single(9, 2)}) == []


def test_without_assumptions_what_must_agree_in_any_case_does():
    graph = model("g (float[n, k] x, float[j, m] y) => (a, s) { a = MatMul(x, y) s = Shape(y) }")
    assert analyse(graph, assuming=False).values["s"].contents.tolist() == [e.extent("k"), e.extent("m")]


def test_an_operator_that_nobody_knows_leaves_the_rest_known():
    graph = model("g (float[n] x) => (z, y) { y = unheard.of(x) z = Relu(x) }")
    sizes = analyse(graph)
    assert sizes.shape("y") is None
    assert sizes.shape("z") == (e.extent("n"),)


def test_values_of_a_call_are_found_by_its_inputs():
    sizes = analyse(HEADS)
    feeds = {"x": single(2, 3, 64)}
    assert extents_of(sizes, feeds) == {"batch": 2, "seq": 3}
    assert computed(HEADS, feeds)["y"].shape == (2, 3, 64)


def test_clipped_floats_are_sizes():
    graph = model("""g (float[1, 28] x) => (y) <float low = {0.0}, float half = {0.5}, float one = {1.0}> {
        s = Shape(x) f = Cast <to = 1> (s) h = Mul(f, half) c = Ceil(h) d = Sub(c, one) t = Clip(d, low)
        i = Cast <to = 7> (t) y = ConstantOfShape(i) }""")
    assert analyse(graph).shape("y") == (0, 13)
