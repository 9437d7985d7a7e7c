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
    ("before", "after"),
    [
        ("half = Div (u2, two)", "half = Add (u2, number)"),  # of what the turn makes
        ("half = Div (u2, two)", "half = Gather <axis = 0> (u2, i)"),  # may fail, and the loop may never run
    ],
)
def test_what_a_turn_makes_stays_in_it(run_passes, before, after):
    text = CARRIED.replace(before, after)
    if "Gather" in after:
        text = text.replace("product = MatMul (x, half)", "product = Mul (half, s)")
    moved = text.replace("number = Cast <to = 1> (i)", "").replace("two =", "number = Cast <to = 1> (i) two =")
    found = run_passes(onnx.parser.parse_model(moved), "hoist-invariants").model
    assert {"Add", "Gather"} & {node.op_type for node in _body(found).node}
    assert not {"Add", "Gather", "Mul"} & {node.op_type for node in found.graph.node}
