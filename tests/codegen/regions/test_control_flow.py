"""If, Loop, Scan and sequences: as ONNX Runtime runs them, with extents that change from turn to turn."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import DataError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.control_flow import compare, compiled, model_of, steps_of
from tests.support.program import PREPARED, REGION, WEIGHT, Table

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_a_branch_reads_outer_values_and_gives_several_results() -> None:
    model = model_of("""
        g (float[N, 4] x, bool c) => (float[A, 4] y, float[N, 4] z) {
          h = Exp (x)
          y, z = If (c) <
            then_branch = t () => (float[A, 4] a, float[N, 4] b) { b = Neg (h)  a = Concat <axis = 0> (x, b) },
            else_branch = e () => (float[A, 4] p, float[N, 4] q) { p = Relu (x)  q = Identity (h) }
          >
        }""")
    library = compare(model, [{"x": floats(3, 4), "c": np.array(flag)} for flag in (True, False)])
    assert "branch" in steps_of(library)
    assert library.metadata["compile"]["fallbacks"] == []


def test_branches_within_branches_and_names_that_occur_twice() -> None:
    inner = "then_branch = {0} () => (float[N] v) {{ v = {1} (x) }}"
    model = model_of(f"""
        g (float[N] x, bool c, bool d) => (float[N] y) {{
          y = If (c) <
            then_branch = t () => (float[N] u) {{
              u = If (d) <{inner.format("i", "Abs")}, else_branch = j () => (float[N] v) {{ v = Neg (x) }}>
            }},
            else_branch = e () => (float[N] u) {{
              w = Sqrt (x)
              u = If (d) <{inner.format("k", "Exp")}, else_branch = l () => (float[N] v) {{ v = Add (w, x) }}>
            }}
          >
        }}""")
    flags = [(c, d) for c in (False, True) for d in (False, True)]
    compare(model, [{"x": abs(floats(5)), "c": np.array(c), "d": np.array(d)} for c, d in flags])


def test_a_loop_ends_by_its_condition_or_its_count_and_stacks_what_it_scans() -> None:
    model = model_of("""
        g (float[N] x, int64 n, float limit) => (float[N] y, int64 last, float[T, N] all) {
          one = Constant <value_int = 1> ()  zero = Constant <value_int = 0> ()
          y, last, all = Loop (n, "", x, zero) <
            body = b (int64 i, bool c, float[N] s, int64 k) => (bool go, float[N] s2, int64 k2, float[N] out) {
              s2 = Add (s, s)  k2 = Add (i, one)  out = Neg (s2)
              top = ReduceMax <keepdims = 0> (s2)  go = Less (top, limit)
            }
          >
        }""")
    feeds = [(5, 1e9), (50, 100.0), (0, 1.0), (1, 0.0)]
    x = abs(floats(3)) + 1
    compare(model, [{"x": x, "n": np.array(n), "limit": np.array(limit, np.float32)} for n, limit in feeds])


def test_what_a_loop_carries_and_never_reads_may_begin_as_anything() -> None:
    """PaddlePaddle writes what its loops leave behind so, and that it has no axes."""
    model = model_of("""
        g (float[N, 4] x, int64 most) => (float[M, 3, 4] y) {
          yes = Constant <value = bool {1}> ()  turns = Constant <value_int = 9> ()
          nothing = Constant <value = float {0}> ()  one = Constant <value_int = 1> ()
          left, last = Loop (turns, yes, nothing, one) <
            body = b (int64 i, bool c, float unread, int64 k) => (bool go, float s, int64 k2) {
              shape = Constant <value = int64[3] {-1, 3, 4}> ()
              thrice = Concat <axis = 0> (x, x, x)  number = Cast <to = 1> (k)  product = Mul (thrice, number)
              s = Reshape (product, shape)
              k2 = Add (k, k)  go = Less (k2, most)
            }
          >
          y = Neg (left)
        }""")
    compare(model, [{"x": floats(2, 4), "most": np.array(most)} for most in (1, 5, 100)])


def test_flags_with_and_without_an_axis_are_the_same() -> None:
    model = model_of("""
        g (float[N] x, float limit) => (float y, int64 last) {
          yes = Constant <value = bool {1}> ()  turns = Constant <value_int = 6> ()
          no = Constant <value = bool {0}> ()  one = Constant <value_int = 1> ()
          start = Constant <value = float {1}> ()
          found, last, end = Loop (turns, yes, no, one, start) <
            body = b (int64 i, bool c, bool f, int64 k, float s) => (bool go, bool f2, int64 k2, float s2) {
              never = Constant <value = bool[1] {0}> ()
              s2 = Add (s, s)  k2 = Add (k, k)  top = ReduceMax <keepdims = 0> (x)  sum = Mul (top, s2)
              past = Greater (sum, limit)
              f2 = If (past) <
                then_branch = t () => (bool yes_it_is) { yes_it_is = Constant <value = bool {1}> () },
                else_branch = e () => (bool as_before) { as_before = Or (f, never) }
              >
              go = Not (past)
            }
          >
          number = Cast <to = 1> (found)  y = ReduceMax <keepdims = 0> (number)
        }""")
    compare(model, [{"x": abs(floats(5)) + 1, "limit": np.array(limit, np.float32)} for limit in (0, 10, 1e9)])


def test_a_loop_carries_arrays_that_grow() -> None:
    model = model_of("""
        g (float[N, 2] x, int64 n) => (float[M, 2] y, float[2] total) {
          yes = Constant <value = bool {1}> ()
          y = Loop (n, yes, x) <
            body = b (int64 i, bool c, float[K, 2] s) => (bool go, float[L, 2] s2) {
              z = Neg (x)  s2 = Concat <axis = 0> (s, z)  go = Identity (c)
            }
          >
          axes = Constant <value_ints = [0]> ()
          total = ReduceSum <keepdims = 0> (y, axes)
        }""")
    compare(model, [{"x": floats(rows, 2), "n": np.array(n)} for rows, n in ((1, 3), (4, 0), (2, 7))])


def test_a_loop_of_known_length_has_results_of_known_size() -> None:
    model = model_of("""
        g (float[3] x) => (float[4, 3] y) {
          n = Constant <value_int = 4> ()
          last, y = Loop (n, "", x) <
            body = b (int64 i, bool c, float[3] s) => (bool go, float[3] s2, float[3] out) {
              f = Cast <to = 1> (i)  s2 = Add (s, f)  out = Identity (s2)  go = Identity (c)
            }
          >
        }""")
    compare(model, [{"x": floats(3)}])


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_goes_along_any_axis_in_either_direction(axis: int, direction: int) -> None:
    model = model_of(f"""
        g (float[2] s0, float[T, 2] a, float[2, T] b) => (float[2] last, float[P, Q] y, float[T, 2] z) {{
          last, y, z = Scan (s0, a, b) <
            num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [{direction}, 0],
            scan_output_axes = [{axis}, 0], scan_output_directions = [{direction}, 0],
            body = body (float[2] s, float[2] p, float[2] q) => (float[2] s2, float[2] u, float[2] v) {{
              t = Mul (p, q)  s2 = Add (s, t)  u = Neg (s2)  v = Identity (p)
            }}
          >
        }}""")
    compare(model, [{"s0": floats(2), "a": floats(n, 2), "b": floats(2, n)} for n in (1, 5)])


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_of_old_goes_through_the_rows_of_its_batch(direction: int) -> None:
    model = model_of(
        f"""
        g (float[B, 2] s0, float[B, T, 2] a, float[B, T, 2] b) => (float[B, 2] last, float[B, T, 2] y) {{
          last, y = Scan ("", s0, a, b) <
            num_scan_inputs = 2, directions = [{direction}, 0],
            body = body (float[2] s, float[2] p, float[2] q) => (float[2] s2, float[2] u) {{
              t = Mul (p, q)  s2 = Add (s, t)  u = Neg (s2)
            }}
          >
        }}""",
        opset=8,
    )
    compare(model, [{"s0": floats(n, 2), "a": floats(n, t, 2), "b": floats(n, t, 2)} for n in (1, 3) for t in (1, 4)])


def test_a_sequence_is_filled_by_a_loop_and_joined_at_its_end() -> None:
    model = model_of("""
        g (float[N, 2] x, int64 n) => (float[M, 2] y, int64 count, float[K, 2] first) {
          empty = SequenceEmpty <dtype = 1> ()
          zero = Constant <value_int = 0> ()  one = Constant <value_ints = [1]> ()
          filled = Loop (n, "", empty) <
            body = b (int64 i, bool c, seq(float[K, 2]) s) => (bool go, seq(float[K, 2]) s2) {
              from = Constant <value_ints = [0]> ()
              next = Add (i, one)
              part = Slice (x, from, next, from)
              s2 = SequenceInsert (s, part)
              go = Identity (c)
            }
          >
          y = ConcatFromSequence <axis = 0> (filled)
          count = SequenceLength (filled)
          first = SequenceAt (filled, zero)
        }""")
    compare(model, [{"x": floats(4, 2), "n": np.array(n)} for n in (1, 4)])


def test_a_tensor_is_split_to_a_sequence_whose_parts_are_worked_on() -> None:
    model = model_of("""
        g (float[N, 4] x, int64[P] sizes, int64 k) => (float[A, 4] y, float[B, N, 4] z, float[C, 4] w) {
          parts = SplitToSequence <axis = 0> (x, sizes)
          part = SequenceAt (parts, k)
          y = Exp (part)
          three = SequenceConstruct (x, x, x)
          two = SequenceErase (three)
          z = ConcatFromSequence <axis = 0, new_axis = 1> (two)
          rows = SplitToSequence <axis = 0, keepdims = 0> (x)
          row = SequenceAt (rows, k)
          more = SequenceInsert (rows, row, k)
          w = ConcatFromSequence <axis = 0, new_axis = 1> (more)
        }""")
    compare(model, [{"x": floats(5, 4), "sizes": np.array([2, 3]), "k": np.array(k)} for k in (0, 1, -1)])


def test_parts_of_a_split_by_ones_have_one_entry_each() -> None:
    """As PyTorch exports repeat_interleave: how often a row comes is a part of a vector, which an Expand takes."""
    model = model_of("""
        g (float[N, 2] x, int64[N] counts) => (float[M, 2] y) {
          size = Shape (counts)  ones = ConstantOfShape <value = int64[1] {1}> (size)
          times = SplitToSequence <axis = 0> (counts, ones)  rows = SplitToSequence <axis = 0> (x, ones)
          empty = SequenceEmpty <dtype = 1> ()  flat = Constant <value_ints = [-1]> ()  n = Reshape (size, flat)
          filled = Loop (n, "", empty) <
            body = b (int64 i, bool c, seq(float[K, 2]) s) => (bool go, seq(float[K, 2]) s2) {
              time = SequenceAt (times, i)  row = SequenceAt (rows, i)
              two = Constant <value_ints = [2]> ()  shape = Concat <axis = 0> (time, two)
              part = Expand (row, shape)  s2 = SequenceInsert (s, part)  go = Identity (c)
            }
          >
          joined = ConcatFromSequence <axis = 0> (filled)  y = Neg (joined)
        }""")
    compare(model, [{"x": floats(len(counts), 2), "counts": np.array(counts)} for counts in ((2, 1, 3), (1,))])


def test_a_condition_that_sizes_decide_is_decided_when_the_model_is_compiled() -> None:
    model = model_of("""
        g (float[N, 4] x) => (float[N, 4] y) {
          r = Constant <value_int = 2> ()  s = Shape (x)  k = Size (s)  c = Equal (k, r)
          y = If (c) <
            then_branch = t () => (float[N, 4] a) { a = Neg (x) },
            else_branch = e () => (float[N, 4] b) { b = Relu (x) }
          >
        }""")
    assert steps_of(compare(model, [{"x": floats(3, 4)}])) == []


def test_weights_that_several_regions_read_are_stored_once() -> None:
    weight = " , ".join(map(str, range(64 * 64)))
    model = model_of(f"""
        g (float[N, 64] x, bool c) => (float[N, 64] y) <float[64, 64] w = {{ {weight} }}> {{
          h = Softmax (x)
          y = If (c) <
            then_branch = t () => (float[N, 64] a) {{ a = MatMul (x, w) }},
            else_branch = e () => (float[N, 64] b) {{ b = MatMul (h, w) }}
          >
        }}""")
    library = compare(model, [{"x": floats(3, 64), "c": np.array(flag)} for flag in (True, False)], tolerance=1e-4)
    assert len(library.weights) <= 64 * 64 * 4 * 1.1
    regions = [function.rows for function in Table(library).functions if function.role == REGION]
    taken = [sum(row.kind in (WEIGHT, PREPARED) for row in rows) for rows in regions]
    assert sorted(taken) == [0, 1, 1]


def test_what_data_decides_within_a_loop_within_a_loop_reads_what_is_around_it() -> None:
    model = model_of("""
        g (float[N, 3] x, int64 n, float t) => (float[N, 3] y, float[P, Q] sums) {
          zero = Constant <value_float = 0.0> ()
          e = Exp (x)
          y, sums = Loop (n, "", x) <
            body = outer (int64 i, bool c, float[N, 3] s) => (bool go, float[N, 3] s3, float[Q] rows) {
              go = Identity (c)
              w = Mul (s, t)
              s3, rows = Loop (n, "", w) <
                body = inner (int64 j, bool d, float[N, 3] r) => (bool on, float[N, 3] r2, float total) {
                  on = Identity (d)
                  hit = Greater (r, zero)
                  at = NonZero (hit)
                  turned = Transpose (at)
                  found = GatherND (e, turned)
                  total = ReduceSum <keepdims = 0> (found)
                  big = Greater (total, t)
                  r2 = If (big) <
                    then_branch = a () => (float[N, 3] u) { u = Sub (r, t) },
                    else_branch = b () => (float[N, 3] u) { k = Add (r, s)  u = Add (k, t) }
                  >
                }
              >
            }
          >
        }""")
    compare(
        model,
        [
            {"x": floats(rows, 3), "n": np.array(n), "t": np.array(t, np.float32)}
            for rows, n, t in ((2, 3, 0.5), (4, 1, 1.5), (1, 2, -0.5))
        ],
    )


def test_extents_that_change_from_turn_to_turn_are_used_in_the_same_turn() -> None:
    model = model_of("""
        g (float[N] x, int64 n) => (float[M] y, float[T] means) {
          one = Constant <value_int = 1> ()  axis = Constant <value_ints = [0]> ()
          y, means = Loop (n, "", x) <
            body = b (int64 i, bool c, float[K] s) => (bool go, float[L] s2, float mean) {
              go = Identity (c)
              size = Shape (s)
              ramp = ConstantOfShape <value = float[1] {0.5}> (size)
              t = Add (s, ramp)
              k = Add (i, one)
              kk = Unsqueeze (k, axis)
              head = Slice (t, axis, kk, axis)
              s2 = Concat <axis = 0> (t, head)
              mean = ReduceMean <keepdims = 0> (s2)
            }
          >
        }""")
    compare(model, [{"x": floats(rows), "n": np.array(n)} for rows, n in ((3, 4), (1, 1), (2, 0))])


BRANCHED = """
    g (float[N, 4, K] x) => (float[A, B] y) {
      last = Constant <value_ints = [2]> ()  one = Constant <value_ints = [1]> ()
      s = Shape (x)  k = Gather (s, last)  c = Equal (k, one)
      z = If (c) <
        then_branch = t () => (float[A, B] a) { a = Squeeze (x, last) },
        else_branch = e () => (float[A, B, C] b) { b = Identity (x) }
      >
      y = Exp (z)
    }"""


def test_an_axis_that_is_removed_if_it_is_one_has_to_be_one() -> None:
    library = compare(model_of(BRANCHED), [{"x": floats(3, 4, 1)}])
    assert steps_of(library) == []
    with pytest.raises(DataError):
        Engine(library.to_bytes(), threads=1)(floats(3, 4, 2))


@pytest.mark.every(8)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("generator", "level"), [("stock", 1), ("tiled", 1), ("tiled", 3)])
def test_a_program_is_the_same_by_any_generator_and_on_any_threads(generator: str, level: int, threads: int) -> None:
    model = model_of("""
        g (float[N, 4] x, int64 n) => (float[M, 4] y, int64[2, K] at) {
          at = NonZero (x)
          y = Loop (n, "", x) <
            body = b (int64 i, bool c, float[R, 4] s) => (bool go, float[S, 4] s2) {
              go = Identity (c)  z = Softmax (s)  s2 = Concat <axis = 0> (s, z)
            }
          >
        }""")
    options = Options(generator=generator, opt_level=level, float16=False, channel_layout=None)
    library = build(model, Target.from_tag("host"), options)
    x, n = np.maximum(floats(3, 4), 0), np.array(2)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "n": n})
    for want, have in zip(wanted, Engine(library.to_bytes(), threads=threads)(x, n), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5)


@pytest.mark.long
def test_the_same_model_has_the_same_bytes() -> None:
    model = model_of("g (float[N] x) => (int64[1, K] y, float[J] z) { y = NonZero (x)  z = Unique (x) }")
    assert compiled(model).to_bytes() == compiled(model).to_bytes()


def test_what_sizes_of_data_have_to_keep_is_checked_before_they_are_computed_with() -> None:
    model = model_of("""
        g (float[N, 3] x, bool[N] c) => (float[3] y) {
          axes = Constant <value_ints = [0]> ()
          p = Compress <axis = 0> (x, c)  s = Squeeze (p, axes)  y = Exp (s)
        }""")
    library = compare(model, [{"x": floats(3, 3), "c": np.array([False, True, False])}])
    with pytest.raises(DataError):
        Engine(library.to_bytes(), threads=1)(floats(3, 3), np.array([True, True, False]))
