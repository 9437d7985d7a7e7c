"""What no turn of a loop changes is read and computed outside of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

CARRIED = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 3] x, int64 n) => (float[N, 4] y, float[3, 4] same, float[T, N, 4] all) {
        w = Constant <value = float[4, 3] {1,2,3,4,5,6,7,8,9,10,11,12}> ()
        zero = Constant <value = float {0}> ()
        t = Transpose <perm = [1, 0]> (w)
        start = MatMul (x, t)
        same, y, never, all = Loop (n, "", t, start, zero) <
            body = turn (int64 i, bool c, float[3, 4] u, float[N, 4] s, float z)
                    => (bool go, float[3, 4] u3, float[N, 4] s2, float z2, float[N, 4] row) {
                go = Identity (c)
                u2 = Identity (u)  u3 = Identity (u2)  z2 = Identity (z)
                two = Constant <value = float {2}> ()
                half = Div (u2, two)
                product = MatMul (x, half)
                s2 = Add (s, product)
                number = Cast <to = 1> (i)
                row = Mul (product, number)
            }
        >
    }"""


def _body(model: onnx.ModelProto) -> onnx.GraphProto:
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    return next(entry.g for entry in loop.attribute if entry.name == "body")


def test_weights_that_are_carried_and_what_is_made_of_them_alone_are_outside(run_passes):
    model = onnx.parser.parse_model(CARRIED)
    found = run_passes(model, "hoist-invariants", "remove-identities", "remove-dead").model
    assert sorted(node.op_type for node in _body(found).node) == ["Add", "Cast", "Identity", "Mul"]
    assert [len(_body(found).input), len(_body(found).output)] == [3, 3]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    for turns in (0, 1, 4):
        feeds = {"x": x, "n": np.array(turns)}
        sessions = (onnxruntime.InferenceSession(one.SerializeToString()) for one in (model, found))
        wanted, have = (session.run(None, feeds) for session in sessions)
        for theirs, ours in zip(wanted, have, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("half", "product", "stays"),
    [
        ("half = Mul (u2, number)", "product = MatMul (x, half)", ["Add", "Cast", "Identity", "MatMul", "Mul", "Mul"]),
        ("half = Gather (x, i)", "product = Add (s, zero)", ["Add", "Add", "Cast", "Gather", "Identity", "Mul"]),
        (
            "half = Gather (u2, first)",
            "product = Mul (start, half)",
            ["Add", "Cast", "Gather", "Identity", "Mul", "Mul"],
        ),
    ],
    ids=["made of the turn's number", "made of what is carried", "may fail, and the loop may never run"],
)
def test_what_a_turn_makes_or_may_fail_stays_in_it(run_passes, half, product, stays):
    text = CARRIED.replace("half = Div (u2, two)", half).replace("product = MatMul (x, half)", product)
    text = text.replace("number = Cast <to = 1> (i)", "").replace("two =", "number = Cast <to = 1> (i) two =")
    text = text.replace("zero = ", "first = Constant <value = int64 {0}> () zero = ", 1)
    found = run_passes(onnx.parser.parse_model(text), "hoist-invariants", "remove-identities").model
    assert sorted(node.op_type for node in _body(found).node if node.op_type != "Constant") == stays
