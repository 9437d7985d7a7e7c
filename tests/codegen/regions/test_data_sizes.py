"""Results whose size is decided by data, each operator that makes one, as ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.control_flow import compare, model_of

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES = {
    "nonzero": (
        "(float[N, 4] x) => (int64[2, K] i, float[K] y) "
        "{ r = Relu (x)  i = NonZero (r)  t = Transpose (i)  p = GatherND (x, t)  y = Exp (p) }",
        [{"x": floats(3, 4)}, {"x": floats(6, 4)}, {"x": -abs(floats(2, 4))}],
    ),
    "sums_of_nothing": (
        "(float[N, 3] x, bool[N] c) => (float[3] y, float z, int64[1] n) { axes = Constant <value_ints = [0]> () "
        "p = Compress <axis = 0> (x, c)  e = Exp (p)  s = ReduceSum <keepdims = 0> (e, axes)  y = Sqrt (s) "
        "z = ReduceSum <keepdims = 0> (e)  i = Cast <to = 7> (p)  k = ReduceSum <keepdims = 1> (i)  "
        "flat = Constant <value_ints = [-1]> ()  n = Reshape (k, flat) }",
        [{"x": floats(4, 3), "c": np.array(flags, bool)} for flags in ((1, 0, 1, 1), (0, 0, 0, 0))],
    ),
    "nonzero_of_a_vector": ("(bool[N] x) => (int64[1, K] y) { y = NonZero (x) }", [{"x": np.array([1, 0, 1], bool)}]),
    "compress": (
        "(float[N, 3] x, bool[N] c) => (float[K, 3] y, float[L] z) "
        "{ p = Compress <axis = 0> (x, c)  y = Neg (p)  z = Compress (x, c) }",
        [{"x": floats(4, 3), "c": RANDOM.integers(0, 2, 4).astype(bool)}],
    ),
    "unique": (
        "(int64[N, 3] x) => (int64[K] y, int64[K] f, int64[M] i, int64[K] c, int64[A, 3] z) "
        "{ y, f, i, c = Unique <sorted = 0> (x)  z = Unique <axis = 0> (x) }",
        [{"x": RANDOM.integers(0, 3, (n, 3))} for n in (1, 6)],
    ),
    "top_k": (
        "(float[N, 9] x, int64[1] k) => (float[N, K] y, int64[N, K] i) { v, i = TopK (x, k)  y = Exp (v) }",
        [{"x": floats(2, 9), "k": ints(k)} for k in (1, 4, 9)],
    ),
    "range": (
        "(int64 a, int64 b, int64 d, float e) => (int64[K] y, float[L] z) "
        "{ r = Range (a, b, d)  y = Neg (r)  zero = Constant <value_float = 0.0> ()  one = Constant "
        "<value_float = 0.5> ()  z = Range (zero, e, one) }",
        [
            {"a": np.array(a), "b": np.array(b), "d": np.array(d), "e": np.array(e, np.float32)}
            for a, b, d, e in ((0, 5, 1, 2.2), (7, 0, -2, 0.1), (3, 3, 1, 3.0))
        ],
    ),
    "range_by_a_size_of_any_sign": (
        "(float[N] x, float[M] y) => (int64[K] z) { n = Size (x)  m = Size (y)  by = Sub (n, m)  "
        "most = Constant <value_int = 9> ()  least = Constant <value_int = 0> ()  r = Range (least, most, by)  "
        "z = Neg (r) }",
        [{"x": floats(n), "y": floats(2)} for n in (1, 3, 7)],
    ),
    "reshape": (
        "(float[N, 6] x, int64[3] s) => (float[A, B, C] y) { r = Reshape (x, s)  y = Neg (r) }",
        [{"x": floats(4, 6), "s": ints(*s)} for s in ((2, 2, 6), (0, -1, 3), (-1, 1, 1))],
    ),
    "expand": (
        "(float[1, 3] x, int64[3] s) => (float[A, B, C] y) { r = Expand (x, s)  y = Neg (r) }",
        [{"x": floats(1, 3), "s": ints(*s)} for s in ((2, 4, 3), (1, 1, 1))],
    ),
    "slice": (
        "(float[N, 8] x, int64[2] a, int64[2] b) => (float[A, B] y, float[C, 8] z) "
        "{ d = Constant <value_ints = [0, 1]> ()  s = Constant <value_ints = [1, -2]> ()  r = Slice (x, a, b, d, s) "
        "y = Neg (r)  zero = Constant <value_ints = [0]> ()  "
        "one = Constant <value_ints = [1]> ()  e = Gather (b, zero)  z = Slice (x, zero, e, zero) }",
        [{"x": floats(5, 8), "a": ints(1, -1), "b": ints(n, m)} for n, m in ((3, 0), (-1, -9), (99, 5), (0, 7))],
    ),
    "constant_of_shape": (
        "(int64[2] s) => (float[A, B] y) { z = ConstantOfShape (s)  y = Cos (z) }",
        [{"s": ints(2, 3)}, {"s": ints(1, 0)}],
    ),
    "tile": (
        "(float[N, 2] x, int64[2] r) => (float[A, B] y) { t = Tile (x, r)  y = Neg (t) }",
        [{"x": floats(3, 2), "r": ints(2, 1)}, {"x": floats(1, 2), "r": ints(1, 3)}],
    ),
    "pad": (
        "(float[N, 2] x, int64[4] p) => (float[A, B] y) { t = Pad (x, p)  y = Exp (t) }",
        [{"x": floats(3, 2), "p": ints(0, 1, 2, 0)}],
    ),
    "one_hot": (
        "(int64[N] x, int64 depth) => (float[N, K] y) "
        "{ v = Constant <value_floats = [0.0, 1.0]> ()  t = OneHot (x, depth, v)  y = Neg (t) }",
        [{"x": ints(0, 2, 1), "depth": np.array(4)}],
    ),
    "boxes": (
        "(float[1, N, 4] b, float[1, C, N] s, float t) => (int64[K, 3] y, float[K] best) { m = Constant "
        "<value_ints = [5]> ()  o = Constant <value_floats = [0.5]> ()  i = NonMaxSuppression (b, s, m, o, t) "
        "y = Identity (i)  p = GatherND (s, i)  best = Sqrt (p) }",
        [
            {"b": RANDOM.random((1, n, 4), np.float32), "s": RANDOM.random((1, 2, n), np.float32), "t": np.float32(t)}
            for n, t in ((20, 0.3), (5, 2.0))
        ],
    ),
    "mean_of_nothing": (
        "(float[N, 3] x, bool[N] c) => (float[3] y, float z) { p = Compress <axis = 0> (x, c)  e = Exp (p)  "
        "axes = Constant <value_ints = [0]> ()  m = ReduceMean <keepdims = 0> (e, axes)  y = Sqrt (m)  "
        "z = ReduceMean <keepdims = 0> (p) }",
        [{"x": floats(4, 3), "c": np.array(flags, bool)} for flags in ((1, 0, 1, 1), (0, 0, 0, 0))],
    ),
    "bag_between_two_offsets": (  # as PyTorch exports EmbeddingBag: where a bag starts and ends is a slice of one
        "(float[N, 3] x, int64[B] offsets, int64 i) => (float[1, 3] y) { flat = Constant <value_ints = [-1]> ()  "
        "k = Reshape (i, flat)  one = Constant <value_int = 1> ()  two = Constant <value_int = 2> ()  "
        "n = Add (k, one)  m = Add (two, k)  start = Slice (offsets, k, n)  end = Slice (offsets, n, m)  "
        "rows = Slice (x, start, end)  axes = Constant <value_ints = [0]> ()  sum = ReduceSum (rows, axes)  "
        "size = Sub (end, start)  f = Cast <to = 1> (size)  y = Div (sum, f) }",
        [{"x": floats(7, 3), "offsets": ints(0, 2, 3, 7), "i": np.array(i)} for i in (0, 1, 2)],
    ),
    "size_of_a_result": (
        "(float[N, 4] x) => (float[A] y) { h = Constant <value_float = 0.5> ()  i = NonZero (x)  s = Shape (i) "
        "one = Constant <value_ints = [1]> ()  k = Gather (s, one)  e = Expand (h, k)  y = Neg (e) }",
        [{"x": floats(3, 4)}],
    ),
}


@pytest.mark.every(10)
@pytest.mark.parametrize("name", CASES)
def test_a_size_that_data_decide_is_that_of_onnx_runtime(name: str) -> None:
    text, samples = CASES[name]
    for sample in samples:
        sample.update({key: np.asarray(value) for key, value in sample.items()})
    compare(model_of(f"g {text}"), samples)
