"""What a file says is read as it is said; what does not fit together is refused."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.tflite import convert, reader
from forge_pipeline.frontends.tflite.sparsity import dense
from tests.support.frontends.tflite_cases import session, written


def test_the_signature_that_serving_programs_call_is_the_model_and_no_other_graph_counts(tmp_path):
    model = convert.convert(written(tmp_path, "read_signatures"), ()).model
    assert [value.name for value in model.graph.input] == ["image"]
    assert [value.name for value in model.graph.output] == ["twice"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session(model).run(None, {"image": x})[0], 2 * x)


class Levels:
    """A table of sparsity parameters, as the flat buffer gives it."""

    def __init__(self, order, levels, blocks=()):
        self.order, self.levels, self.blocks = order, levels, blocks

    def __getattr__(self, name):
        lists = {"TraversalOrder": "order", "BlockMap": "blocks", "DimMetadata": "levels"}
        if name.endswith("Length"):
            return lambda: len(getattr(self, lists[name.removesuffix("Length")]))
        return lambda place: getattr(self, lists[name])[place]


class Dense:
    def __init__(self, size):
        self.size = size

    def Format(self):
        return 0

    def DenseSize(self):
        return self.size


def test_a_dense_tree_is_the_array_in_another_order():
    values = np.arange(6)
    found = dense(values, Levels((1, 0), (Dense(3), Dense(2))), [2, 3])
    np.testing.assert_array_equal(found, values.reshape(3, 2).T)


@pytest.mark.parametrize(
    ("order", "levels", "blocks", "shape"),
    [
        ((0, 0), (Dense(2), Dense(3)), (), [2, 3]),  # an axis twice
        ((0, 1), (Dense(2),), (), [2, 3]),  # a level that is not there
        ((0, 1), (Dense(2), Dense(4)), (), [2, 3]),  # more than there is
        ((0, 1, 2), (Dense(2), Dense(3), Dense(1)), (5,), [2, 3]),  # blocks of no axis
        ((0, 1), (Dense(3), Dense(2)), (), [2, 3]),  # outside
    ],
)
def test_a_tree_that_does_not_fit_is_told(order, levels, blocks, shape):
    with pytest.raises(ValueError, match=r"sparse|blocks|entry"):
        dense(np.arange(6), Levels(order, levels, blocks), shape)


def test_a_damaged_sparse_file_is_refused_or_read_and_nothing_else(tmp_path):
    path = written(tmp_path, "sparse")
    content, random, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(200):
        damaged = bytearray(content)
        for position in random.integers(8, len(content), 4):
            damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            reader.read(path)
        except ModelError:
            refused += 1
    assert 0 < refused < 200


@pytest.mark.parametrize("name", ["lstm_plain", "loop", "variable", "mediapipe_landmarks", "detection", "branch"])
def test_a_damaged_file_is_refused_or_converted_and_nothing_else(tmp_path, name):
    path = written(tmp_path, name)
    content, random = path.read_bytes(), np.random.default_rng(len(name))
    for _ in range(40):
        damaged = bytearray(content)
        for position in random.integers(8, len(content), 3):
            damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            convert.convert(path, ())
        except ModelError:
            continue
