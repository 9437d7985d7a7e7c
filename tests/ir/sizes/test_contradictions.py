"""Extents that a file names wrongly get names of their own; those that it names rightly keep theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import forge_pipeline as forge
from forge_pipeline.ir.canonical import canonical
from forge_pipeline.ir.sizes.contradictions import told_apart

Inputs = Mapping[str, Sequence[int | str]]
WEIGHTS: Mapping[str, Any] = {
    "zero": np.int64([0]), "one": np.int64([1]), "far": np.int64([1 << 62]), "step": np.int64([384]),
    "table": np.ones((1, 128), np.float32), "w": np.ones((1, 1, 4), np.float32),
}  # fmt: skip


def model(inputs: Inputs, *nodes: tuple[str, Sequence[str], str, Mapping[str, Any]]) -> onnx.ModelProto:
    made = [helper.make_node(kind, list(given), [made], **options) for kind, given, made, options in nodes]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def renamed(source: onnx.ModelProto) -> dict[tuple[str, int], str]:
    return dict(told_apart(canonical(source))[1])


def samples_and_frames() -> onnx.ModelProto:
    """Frames, of which each has 384 samples, and a mask of samples that has the name of the frames."""
    return model(
        {"frames": ["B", "N"], "mask": ["B", "N"]},
        ("Slice", ["mask", "zero", "far", "one", "step"], "each", {}),
        ("Add", ["frames", "each"], "y", {}),
    )


def test_a_mask_of_samples_is_not_as_long_as_the_frames() -> None:
    assert renamed(samples_and_frames()) == {("mask", 1): "mask_1"}


def test_a_mask_of_all_tokens_is_longer_than_the_new_ones() -> None:
    source = model(
        {"new": ["B", "S"], "mask": ["B", "S"], "past": ["B", "P"]},
        ("Concat", ["past", "new"], "all", {"axis": 1}),
        ("Mul", ["all", "mask"], "y", {}),
    )
    assert renamed(source) == {("mask", 1): "mask_1"}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(model({"a": ["B", "S"], "b": ["B", "S"]}, ("Add", ["a", "b"], "y", {})), id="equal"),
        pytest.param(
            model({"a": ["B", "S"], "b": ["B", "S"]}, ("Add", ["a", "b"], "c", {}), ("Add", ["c", "table"], "y", {})),
            id="one size",
        ),
        pytest.param(
            model(
                {"a": [1, 1, "S"], "b": [1, 1, "S"]},
                ("Add", ["a", "b"], "c", {}),
                ("Conv", ["c", "w"], "d", {"strides": [4]}),
                ("ConvTranspose", ["d", "w"], "e", {"strides": [4]}),
                ("Add", ["c", "e"], "y", {}),
            ),
            id="multiples of four",
        ),
        pytest.param(model({"a": ["B", "S"], "b": ["B"]}, ("Relu", ["a"], "y", {})), id="not read"),
    ],
)
def test_names_that_some_sizes_keep_stay(source: onnx.ModelProto) -> None:
    assert renamed(source) == {}


def test_a_model_of_wrong_names_runs_with_the_sizes_that_it_is_made_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(samples_and_frames(), path)
    module = forge.load(path)
    assert module.input_shapes == [("B", "N"), ("B", "mask_1")]
    library = module.compile(output_path=tmp_path / "out") / "model_library.so"
    frames = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = forge.Engine(library)(mask=np.ones((2, 900), np.float32), frames=frames)
    np.testing.assert_array_equal(found, frames + 1)
