"""If, Loop, Scan and sequences: what is known of their values holds whichever graph runs, however often."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import analyse
from tests.support.sizes import differences

N = e.extent("n")


def model(text, opset=18):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def single(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def branches(condition, yes, no, *, before=""):
    return model(f"""g (float[n, 4] x, bool flag) => (y) <int64[1] first = {{0}}, int64[1] last = {{1}},
        int64 zero = {{0}}, int64 big = {{100}}> {{ {before}
        y = If ({condition}) <then_branch = a () => (float[i, j] p) {{ {yes} }},
                              else_branch = b () => (float[k, l] q) {{ {no} }}> }}""")


def test_a_decided_branch_alone_counts():
    before = "s = Shape(x) n = Gather(s, zero) r = Size(s) c = Greater(r, zero)"
    graph = branches("c", "p = Transpose(x)", "q = Relu(x)", before=before)
    sizes = analyse(graph)
    assert sizes.shape("y") == (4, N)
    assert "q" not in sizes.values
    assert differences(graph, {"x": single(3, 4), "flag": np.array(False)}) == []


def test_branches_that_agree_say_what_comes_out():
    graph = branches("flag", "p = Relu(x)", "q = Neg(x)")
    assert analyse(graph).shape("y") == (N, 4)


def test_branches_that_differ_leave_an_extent_to_the_data_and_bound_it():
    graph = branches("flag", "p = Concat <axis = 0> (x, x)", "q = Neg(x)")
    sizes = analyse(graph)
    open_extent, width = sizes.shape("y")
    assert width == 4
    assert sizes.bounds_of_data == {str(open_extent): 2 * N}
    for flag in (False, True):
        assert differences(graph, {"x": single(3, 4), "flag": np.array(flag)}) == []


def test_a_size_decides_where_it_is_not_known_at_first():
    before = "s = Shape(x) n = Gather(s, zero) c = Greater(n, big)"
    graph = branches("c", "p = Relu(x)", "q = Neg(x)", before=before)
    (entry,) = analyse(graph).values["c"].contents.reshape(-1).tolist()
    assert [e.evaluate(entry, {"n": n}) for n in (100, 101)] == [0, 1]


def test_what_a_branch_demands_is_demanded_where_it_runs():
    graph = branches(
        "flag", "r = Constant <value_floats = [1.0, 2.0, 3.0]> () t = Transpose(x) p = Add(t, r)", "q = Neg(x)"
    )
    sizes = analyse(graph)
    (constraint,) = sizes.constraints
    assert constraint.graph == "y.then_branch"
    assert sizes.shape("x") == (N, 4)
    assert differences(graph, {"x": single(5, 4), "flag": np.array(False)}) == []


SQUEEZED = """g (float[n, d, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (y) <int64 one = {1}, int64[1] axis = {1},
    int64 ten = {10}> { s = Shape(x) h = Gather(s, one) c = Equal(h, one) z = If (c)
        <then_branch = a () => (float[i, j] p) { p = Squeeze(x, axis) },
         else_branch = b () => (float[k, l, o] q) { q = Identity(x) }>
        BEHIND }"""


def test_only_the_branch_that_something_can_be_done_with_runs():
    """Older exporters write ``squeeze(1)`` so: where the axis is longer than 1, what follows would fail."""
    graph = model(SQUEEZED.replace("BEHIND", "f = Unsqueeze(z, axis) y, _ = LSTM <hidden_size = 3> (f, w, r)"))
    sizes = analyse(graph)
    assert sizes.shape("z") == (N, 4)
    assert sizes.shape("y") == (N, 1, 1, 3)
    assert [str(constraint.size) for constraint in sizes.constraints] == ["d - 1"]
    weights = {"w": single(1, 12, 4), "r": single(1, 12, 3)}
    assert differences(graph, {"x": single(5, 1, 4), **weights}) == []


def test_a_rank_is_open_where_both_branches_can_go_on():
    sizes = analyse(model(SQUEEZED.replace("BEHIND", "y = Relu(z)")))
    assert sizes.shape("y") is None
    assert sizes.constraints[0].graph == "z.then_branch"


def loop(body, carried, count="m"):
    return model(f"""g (float[n, 4] x, bool yes, int64 m) => (y, z) <int64 five = {{5}}, int64[1] front = {{0}}> {{
        y, z = Loop ({count}, yes, {carried}) <body =
            b (int64 i, bool go, float[p, q] c) => (bool on, float[r, s] d, float[t, u] each) {{ {body} }}> }}""")


def loop_feeds(n, m):
    return {"x": single(n, 4), "yes": np.array(True), "m": np.array(m, np.int64)}


def test_what_a_loop_carries_and_does_not_change_keeps_its_size():
    graph = loop("on = Identity(go) d = Relu(c) each = Neg(c)", "x")
    sizes = analyse(graph)
    assert sizes.shape("y") == (N, 4)
    steps, *rest = sizes.shape("z")
    assert rest == [N, 4]
    assert e.names(steps) <= set(sizes.bounds_of_data)
    assert differences(graph, loop_feeds(3, 2)) == []


def test_a_loop_that_nothing_ends_early_runs_as_often_as_it_is_told():
    graph = model("""g (float[n, 4] x) => (y, z) <int64 five = {5}> {
        s = Shape <end = 1> (x) t = Squeeze(s)
        y, z = Loop (t, "", x) <body = b (int64 i, bool go, float[p, q] c) => (bool on, float[r, s] d, float[t, u] each)
        { on = Identity(go) d = Relu(c) each = Neg(c) }> }""")
    assert analyse(graph).shape("z") == (N, N, 4)
    assert differences(graph, {"x": single(3, 4)}) == []


def test_what_a_loop_lets_grow_is_left_to_the_data():
    graph = loop("on = Identity(go) d = Concat <axis = 0> (c, x) each = Relu(x)", "x")
    sizes = analyse(graph)
    rows, columns = sizes.shape("y")
    assert columns == 4
    assert e.names(rows) <= set(sizes.bounds_of_data)
    assert e.names(sizes.shape("c")[0]) <= set(sizes.bounds_of_data)
    assert differences(graph, loop_feeds(3, 2), loop_feeds(3, 5)) == []


def test_what_changes_its_rank_in_a_loop_has_no_known_shape():
    graph = loop("on = Identity(go) d = Unsqueeze(c, front) each = Relu(x)", "x")
    assert analyse(graph).shape("y") is None


def test_a_scan_goes_over_slices():
    graph = model("""g (float[n, 4] x, float[4] start) => (last, all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[4] c, float[4] e) => (float[4] d, float[4] f)
        { d = Add(c, e) f = Identity(d) }> (start, x) }""")
    sizes = analyse(graph)
    assert sizes.shape("last") == (4,)
    assert sizes.shape("all") == (N, 4)
    assert differences(graph, {"x": single(3, 4), "start": single(4)}) == []


def test_loops_within_loops_come_to_an_end():
    """Each loop's body is gone through twice at least: what is nested twenty times would take for ever."""
    text = "on = Identity(go) d = Relu(x)"
    for level in range(20):
        text = f"""on = Identity(go) d = Loop (m, go, x) <body = b{level} (int64 i{level}, bool go, float[p] c{level})
            => (bool on, float[r] d) {{ {text} }}>"""
    graph = model(f"g (float[n] x, bool go, int64 m) => (d) {{ {text} }}")
    assert analyse(graph).shape("x") == (N,)


SEQUENCES = {
    "parts of one size": "p = SplitToSequence <axis = 1> (x, two) a = SequenceAt(p, one) y = Relu(a)",
    "given parts": "p = SplitToSequence <axis = 1> (x, parts) a = SequenceAt(p, minus) y = Relu(a)",
    "rows": "p = SplitToSequence <axis = 1, keepdims = 0> (x) a = SequenceAt(p, one) y = Relu(a)",
    "built and joined": """q = SequenceConstruct(x, x) r = SequenceInsert(q, x) p = SequenceErase(r, one)
        y = ConcatFromSequence <axis = 0> (p)""",
    "built and stacked": "p = SequenceConstruct(x, x, x) y = ConcatFromSequence <axis = 0, new_axis = 1> (p)",
    "counted": "p = SequenceConstruct(x, x) c = SequenceLength(p) d = Unsqueeze(c, front) y = ConstantOfShape(d)",
    "open": "p = SplitToSequence <axis = 0> (x, two) y = ConcatFromSequence <axis = 0> (p)",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_tensors_of_a_sequence_are_told_apart_where_their_count_is_known(name):
    graph = model(f"""g (float[n, 4] x) => (y) <int64 one = {{1}}, int64 two = {{2}}, int64 minus = {{-1}},
        int64[2] parts = {{1, 3}}, int64[1] front = {{0}}> {{ {SEQUENCES[name]} }}""")
    assert differences(graph, {"x": single(3, 4)}, {"x": single(4, 4)}) == []
    assert (name == "open") == bool(analyse(graph).bounds_of_data)


def test_an_input_that_is_a_sequence_has_tensors_of_an_unknown_shape():
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    node = helper.make_node("SequenceAt", ["x", "i"], ["y"])
    index = onnx.numpy_helper.from_array(np.array(0, np.int64), "i")
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)], [out], [index])
    sizes = analyse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert (sizes.values["y"].dtype, sizes.values["y"].shape) == (TensorProto.FLOAT, None)
