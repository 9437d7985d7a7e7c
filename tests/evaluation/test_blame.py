"""The layer in which a compiled model leaves its model is named: real builds, by a compiler that was given a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from forge_pipeline.evaluation.blame import first_difference
from forge_pipeline.evaluation.layers import Feed
from forge_pipeline.ir import ONNXModule
from forge_pipeline.runtime.unpacked import loaded
from tests.support.native import convolutions, library_of

FEED = {"x": np.random.default_rng(1).standard_normal((2, 3, 24, 24)).astype("f")}


def never(model: ModelProto) -> bool:
    return False


def compiler(weight: str, is_right: Callable[[ModelProto], bool] = never) -> Callable[..., Mapping[str, Any]]:
    """Return a compiler that takes ``weight`` for twice what it is where the model is not one that it gets right."""

    def compiled(model: ModelProto, feed: Feed) -> Mapping[str, Any]:
        copy = ModelProto.FromString(model.SerializeToString())
        for tensor in copy.graph.initializer:
            if tensor.name == weight and not is_right(model):
                tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), weight))
        return loaded(library_of(copy), threads=1).run(**feed)

    return compiled


def blamed(compiled: Callable[..., Mapping[str, Any]]) -> str:
    model = ONNXModule(convolutions())
    return first_difference(model, model, FEED, compiled(model.light, FEED), compiled)


@pytest.mark.parametrize(
    ("weight", "layer"), [pytest.param("w", "a (Conv+Relu", marks=pytest.mark.long), ("v", "c (Conv")]
)
def test_the_layer_whose_code_is_wrong_is_named(weight: str, layer: str) -> None:
    assert blamed(compiler(weight)).partition(", SQNR")[0] == layer


@pytest.mark.long
def test_a_fault_of_fusion_is_found_where_it_goes() -> None:
    """The first convolution's code is right wherever its reader is not fused with it."""
    faulty = compiler("w", lambda model: "b" in [value.name for value in model.graph.output])
    assert blamed(faulty) == "where b (Relu) is fused with what reads it: the loss goes where that is stored"
