"""ONNX's own node tests through RelaxModule: what it computes is right, what it cannot is refused, nothing is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import onnx_nodes
from tests.support.paths import ROOT

LEAST = 1000
"""So many of the 1404 pass at least; fewer would be a loss."""
OPERATORS = (
    "celu", "cumprod", "reducemax", "rmsnormalization", "attention", "cast", "split", "dropout",
    "onehot", "lpnormalization", "if_",
)  # fmt: skip
SAMPLE = {
    "test_attention_23_boolmask_fullymasked_row_nan_robustness": "pass",
    "test_rms_normalization_3d_axis0_epsilon": "pass",
    "test_celu": "pass",
    "test_reduce_max_bool_inputs": "pass",
    "test_cumprod_1d_reverse": "pass",
    "test_cast_FLOAT_to_DOUBLE": "pass",
    "test_onehot_with_negative_axis": "pass",
    "test_onehot_out_of_range_indices": "pass",
    "test_l1normalization_axis_0": "pass",
    "test_if": "pass",  # its condition is an array without dimensions
    "test_split_zero_size_splits_opset18": "pass",
    "test_training_dropout_default": "refused",
}


@pytest.mark.filterwarnings("ignore")  # onnx's generators of expected values divide by zero on purpose
def test_a_sample_of_the_node_tests_passes_or_is_refused_as_it_should() -> None:
    onnx_nodes.ready()
    corpus = onnx_nodes.cases_of(*OPERATORS)
    found = {name: onnx_nodes.outcome_apart(corpus[name]) for name in SAMPLE}
    assert {name: outcome.kind for name, outcome in found.items()} == SAMPLE
    assert all("fix:" in outcome.said for outcome in found.values() if outcome.said)


@pytest.mark.long
def test_no_node_test_gives_a_wrong_result_and_most_pass() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.onnx_nodes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    total, passed, _, wrong = (int(word) for word in done.stdout.splitlines()[-1].split() if word.isdigit())
    assert (total, wrong) == (1404, 0)
    assert passed >= LEAST
