"""Programs with blocks: what they compute, data that ask for what cannot be, memory, cancelling."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from forge_pipeline.runtime.bundle import Library
from tests.support.control_flow import compare, compiled, model_of
from tests.support.forge import CANCELLED, INPUT, Array, Forge
from tests.support.native import Runner, sequences
from tests.support.program import Table
from tests.support.sums import assert_close

RANDOM = np.random.default_rng(17)
CALLS = [(5, [2, 3], 3, True), (2, [1, 1], 1, False), (6, [2, 2, 2], 40, False), (5, [0, 5], 1, True)]

NAMES = ("x", "sizes", "n", "c")


def inputs(rows: int, sizes: list[int], turns: int, flag: bool) -> list[np.ndarray]:
    x = np.maximum(RANDOM.standard_normal((rows, 4)), 0).astype(np.float32)
    return [x, np.array(sizes, np.int64), np.array(turns, np.int64), np.array(flag)]


@pytest.fixture
def session(runtime: Path, libraries: Path) -> Callable[..., tuple[Forge, ctypes.c_void_p]]:
    """Return what starts a session of a library; nothing is given back: the process ends."""

    def start(library: bytes | None = None) -> tuple[Forge, ctypes.c_void_p]:
        forge, model = Forge(runtime / "libforge.so"), ctypes.c_void_p()
        data = np.frombuffer(library or (libraries / "sequences.so").read_bytes(), np.uint8)
        assert forge.open_memory(data[:], len(data), model) == 0, forge.message()
        KEPT.append(data)
        return forge, forge.start(model)

    return start


KEPT: list[np.ndarray] = []
"""Libraries that are open where they lie."""


def test_the_model_has_all_kinds_of_steps(libraries: Path) -> None:
    table = Table(Library.from_bytes((libraries / "sequences.so").read_bytes()))
    steps = {step.name for block in table.blocks for step in block.steps}
    assert steps == {
        *("call", "extents", "prefix", "branch", "loop", "list"),
        *("insert", "erase", "pick", "length", "split", "join"),
    }


def test_a_session_computes_what_onnx_runtime_does(session: Callable[..., tuple[Forge, object]]) -> None:
    reference, (forge, started) = onnxruntime.InferenceSession(sequences().SerializeToString()), session()
    for call in [*CALLS, *CALLS]:
        given = inputs(*call)
        wanted = reference.run(None, dict(zip(NAMES, given, strict=True)))
        outputs = [Array() for _ in wanted]
        assert forge.run(started, given, outputs) == 0, forge.message()
        for output, want in zip(outputs, wanted, strict=True):
            assert list(output.shape[: want.ndim]) == list(want.shape)
            found = np.frombuffer(ctypes.string_at(output.data, output.size), want.dtype).reshape(want.shape)
            assert_close(found, want, within=1e-5)


def test_forge_run_says_the_sizes_that_data_decided(libraries: Path, runner: Runner, tmp_path: Path) -> None:
    given = inputs(5, [2, 3], 3, True)
    for name, array in zip(NAMES, given, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    done = runner.start(libraries / "sequences.so", *(tmp_path / f"{name}.npy" for name in NAMES), "--runs", "2")
    assert f"output at: int64 [2, {np.count_nonzero(given[0])}]" in done.stdout
    assert "output rows: float32 [3, 4]" in done.stdout


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ((5, [2, 2], 1, True), "expected parts that are 5 long together, found 4"),
        ((5, [-1, 6], 1, True), "expected parts that are 5 long together"),
        ((5, [], 1, True), "expected parts that are 5 long together, found 0"),
        ((5, [2, 3], 0, True), None),
    ],
)
def test_what_cannot_be_is_refused(
    session: Callable[..., tuple[Forge, object]], call: tuple[int, list[int], int, bool], said: str | None
) -> None:
    forge, started = session()
    code = forge.run(started, inputs(*call), [Array() for _ in range(5)])
    assert code == (INPUT if said else 0)
    assert said is None or said in forge.message()
    assert forge.run(started, inputs(*CALLS[0]), [Array() for _ in range(5)]) == 0


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (
            "(float[N] x, int64 k) => (float[A] y) { s = SequenceConstruct (x, x)  y = SequenceAt (s, k) }",
            [np.ones(3, np.float32), np.array(2)],
            "expected a place in a list of 2, found 2",
        ),
        (
            "(int64[2] s) => (float[A, B] y) { z = ConstantOfShape (s)  y = Cos (z) }",
            [np.array([3, -1])],
            "of which none is negative, found -1",
        ),
        (
            """(float[N] x, int64 n) => (float[T, A] y) {
              y = Loop (n, "") <body = b (int64 i, bool c) => (bool go, float[A] r) {
                zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
                go = Identity (c)  j = Reshape (i, one)  k = Add (j, one)  r = Slice (x, zero, k, zero)
              }>
            }""",
            [np.ones(3, np.float32), np.array(2)],
            "expected a loop whose turns give arrays of one shape",
        ),
        (
            "(float[N, P] x, float[M, Q] y) => (float[A, B] z) "
            "{ s = SequenceConstruct (x, y)  z = ConcatFromSequence <axis = 0> (s) }",
            [np.ones((1, 3), np.float32), np.ones((1, 2), np.float32)],
            "expected arrays that go together",
        ),
        (
            "(float[N, 3] x, bool[N] c) => (float[3] y) { axes = Constant <value_ints = [0]> () "
            "p = Compress <axis = 0> (x, c)  s = Squeeze (p, axes)  y = Exp (s) }",
            [np.ones((2, 3), np.float32), np.array([True, True])],
            "expected sizes that go together",
        ),
    ],
    ids=["position", "negative", "shares", "concat", "demand"],
)
def test_data_that_ask_for_what_cannot_be_are_refused(
    session: Callable[..., tuple[Forge, object]], text: str, given: list[np.ndarray], said: str
) -> None:
    library = compiled(model_of(f"g {text}")).to_bytes()
    forge, started = session(library)
    assert forge.run(started, given, [Array()]) == INPUT
    assert said in forge.message()


LOOP = """g (float[N] x, int64 n) => (float[A] y) {
    y = Loop (n, "", x) <body = b (int64 i, bool c, float[K] s) => (bool go, float[L] r) {
        go = Identity (c)  t = Neg (s)  r = Concat <axis = 0> (t, x)
    }>
}"""


@pytest.fixture(scope="module")
def loop() -> bytes:
    return compiled(model_of(LOOP)).to_bytes()


def test_a_loop_that_is_cancelled_ends_and_the_next_call_runs(
    session: Callable[..., tuple[Forge, object]], loop: bytes
) -> None:
    forge, started = session(loop)
    given = [np.ones(1, np.float32), np.array(1 << 40)]
    timer = threading.Timer(0.2, lambda: forge.c.forge_cancel(started))
    timer.start()
    start = time.monotonic()
    assert forge.run(started, given, [Array()]) == CANCELLED
    assert time.monotonic() - start < 5
    assert forge.run(started, [given[0], np.array(3)], [Array()]) == 0


def test_memory_of_a_loop_stays_flat(session: Callable[..., tuple[Forge, object]], loop: bytes) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    forge, started = session(loop)
    given = [np.ones(64, np.float32), np.array(500)]
    output = Array()
    assert forge.run(started, given, [output]) == 0
    assert output.shape[0] == 64 * 501
    before = resident()
    for _ in range(20):
        assert forge.run(started, given, [Array()]) == 0
    assert resident() - before < 64  # pages; what the turns of a call make is 32 MB


def test_outputs_that_are_inputs_weights_or_of_no_elements() -> None:
    text = """g (float[N, 2] x, bool c) => (float[N, 2] y, int64[2] z, int64[2, K] at, float[N, 2] w) {
        z = Constant <value_ints = [3, 4]> ()
        at = NonZero (x)
        y = Identity (x)
        w = If (c) <then_branch = t () => (float[N, 2] a) { a = Identity (x) },
                    else_branch = e () => (float[N, 2] b) { b = Neg (x) }>
    }"""
    samples = [
        {"x": np.full((rows, 2), value, np.float32), "c": np.array(value > 0)}
        for rows in (3, 1, 0)
        for value in (1.5, 0)
    ]
    compare(model_of(text), samples)


def test_extents_of_0_run_where_an_output_has_elements() -> None:
    text = """g (float[N, 3] x) => (float[3] y, float[N, 3] z) {
        a = Constant <value_ints = [0]> ()  y = ReduceSum <keepdims = 0> (x, a)  z = Exp (x)
    }"""
    compare(model_of(text), [{"x": np.ones((rows, 3), np.float32)} for rows in (0, 2)])
