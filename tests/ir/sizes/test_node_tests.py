"""ONNX's own node tests: every result has the shape and the type that the rules say, its inputs' extents being open."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx
import pytest

from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import analyse
from tests.support.sizes import holds


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the corpus overflows on purpose
        from onnx.backend.test.loader import load_model_tests

        return [case for case in load_model_tests(kind="node") if case.model is not None and case.data_sets]


def opened(model):
    """Return a model whose inputs have named extents, but where these are 0 or 1: an open one is never broadcast."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in found.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value > 1:
                dim.dim_param = f"{value.name}_{axis}"
    return inline_functions(found)


def is_array(item):
    return isinstance(item, (np.ndarray, np.generic))


def test_results_have_the_shapes_that_are_worked_out_of_open_extents(cases):
    wrong, counts = [], Counter()
    for case in cases:
        model = opened(case.model)
        sizes = analyse(model)
        inputs, outputs = case.data_sets[0]
        extents = {
            f"{value.name}_{axis}": number
            for value, item in zip(model.graph.input, inputs, strict=False)
            for axis, number in enumerate(np.shape(item) if is_array(item) else getattr(item, "dims", ()))
        }
        if not holds(sizes, extents):
            wrong.append(f"{case.name}: refused")
        for value, item in zip(model.graph.output, outputs, strict=False):
            if not is_array(item):
                continue
            known = sizes.values[value.name]
            if known.shape is None or any(e.names(size) - extents.keys() for size in known.shape):
                counts["open"] += 1
                if known.shape is not None and len(known.shape) != np.ndim(item):
                    wrong.append(f"{case.name}: rank {len(known.shape)}")
                continue
            counts["known"] += 1
            found = tuple(e.evaluate(size, extents) for size in known.shape)
            if found != np.shape(item) or known.dtype != value.type.tensor_type.elem_type:
                wrong.append(f"{case.name}: {known.shape} is {found}, not {np.shape(item)}")
    assert wrong == []
    assert counts["known"] > 1650  # the others' are in what these tests feed: axes, sizes, counts of what is kept
