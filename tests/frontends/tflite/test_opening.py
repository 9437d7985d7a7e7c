"""Sizes stay open where the file says so and where the model runs at more than one."""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite import convert
from tests.support.frontends.tflite_cases import session, written
from tests.support.sums import assert_close


def shapes(values):
    return [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values]


def test_a_batch_that_an_operator_has_fixed_is_fixed(tmp_path):
    converted = convert.convert(written(tmp_path, "read_sizes_that_are_fixed"), ())
    assert converted.notes["batch"] == "fixed"
    assert shapes(converted.model.graph.input) == [[1, 2, 3]]


def test_an_image_of_any_size_is_one(tmp_path):
    model = convert.convert(written(tmp_path, "read_sizes_beside_the_batch"), ()).model
    assert shapes(model.graph.input) == [["N", "t1_1", "t1_2", 2]]
    assert shapes(model.graph.output) == [["N", 3], ["N", "t3_1", "t3_2", 3]]
    run, random = session(model), np.random.default_rng(0)
    for batch, height, width in ((1, 5, 7), (2, 32, 9)):
        x = random.normal(size=(batch, height, width, 2)).astype(np.float32)
        mean, made = run.run(None, {"t1": x})
        assert made.shape == (batch, -(-height // 2), -(-width // 2), 3)
        assert_close(mean, made.mean(axis=(1, 2)), within=1e-5)


def test_a_dilated_window_over_an_image_of_any_size_is_padded_on_both_sides(tmp_path):
    run = session(convert.convert(written(tmp_path, "read_a_dilated_window"), ()).model)
    random = np.random.default_rng(0)
    for height, width in ((7, 9), (8, 4)):
        x = random.normal(size=(1, height, width, 1)).astype(np.float32)
        padded = np.pad(x[0, :, :, 0], ((3, 3), (1, 1)))
        kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
        wanted = sum(
            kernel[row, column] * padded[3 * row : 3 * row + height, 2 * column : 2 * column + width]
            for row, column in np.ndindex(3, 2)
        )
        (found,) = run.run(None, {"t1": x})
        assert_close(found[0, :, :, 0], wanted, within=1e-5)


def test_a_size_that_depends_on_data_is_not_one(tmp_path):
    model = convert.convert(written(tmp_path, "rows_where"), ()).model
    for rows in range(6):
        x = np.full((5, 3), -1, np.float32)
        x[:rows] = 1
        (found,) = session(model).run(None, {model.graph.input[0].name: x})
        assert found.shape == (3 * rows,)
