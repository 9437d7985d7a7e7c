"""What the interpreter keeps between calls are inputs and outputs; how it is computed, test_operators.py compares."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.tflite import convert
from tests.support.frontends.tflite_cases import session, written


def names(values):
    return [value.name for value in values]


def test_states_have_names_of_their_own_behind_the_models_inputs(tmp_path):
    converted = convert.convert(written(tmp_path, "read_states_of_one_name"), ())
    graph = converted.model.graph
    assert names(graph.input)[1:] == ["state_1", "state_2", "state_3"]
    assert names(graph.output)[1:] == ["state_1_next", "state_2_next", "state_3_next"]
    assert converted.notes["state"][0] == {"input": "state_1", "output": "state_1_next", "first": 0.0}


def test_a_variable_begins_with_what_the_file_says(tmp_path):
    notes = convert.convert(written(tmp_path, "variable"), ()).notes
    assert notes["state"] == [{"input": "mean", "output": "mean_next", "first": 0.5}]


def test_a_model_that_keeps_nothing_has_no_note_of_it(tmp_path):
    assert "state" not in convert.convert(written(tmp_path, "loop"), ()).notes


def test_the_same_state_gives_the_same_result_whatever_was_called_before(tmp_path):
    run = session(convert.convert(written(tmp_path, "svdf"), ()).model)
    values, state = (value.name for value in run.get_inputs())
    x, zeros = np.ones((2, 3), np.float32), np.zeros((2, 40), np.float32)
    first, after = run.run(None, {values: x, state: zeros})
    second, _ = run.run(None, {values: x, state: after})
    again, _ = run.run(None, {values: x, state: zeros})
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 1e-3


def test_state_in_a_branch_is_refused(tmp_path):
    with pytest.raises(ModelError, match="operator 0, RNN: expected state outside of branches and loops"):
        convert.convert(written(tmp_path, "read_state_in_a_branch"), ())
