"""Small models, and the options with which they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.options import Options
from tests.support.paths import ROOT

OPSET = 18


@pytest.fixture(scope="session")
def digits() -> onnx.ModelProto:
    """Return the bundled model."""
    return onnx.load(ROOT / "examples/digits/digits.onnx")


@pytest.fixture(scope="session")
def stock() -> Options:
    """Return the options for TVM's own pipeline without constant folding: the quickest way to a library."""
    return Options(generator="stock", opt_level=1, float16=False, channel_layout=None)


@pytest.fixture(scope="session")
def model_of() -> Callable[..., onnx.ModelProto]:
    """Return a function that makes a model of one node, from its operator, inputs by name and attributes.

    An input is an array (it becomes an initializer) or (shape, dtype); outputs are named out0, out1, ...
    """

    def model_of(
        operator: str,
        inputs: dict[str, Any],
        *,
        outputs: Sequence[int] = (TensorProto.FLOAT,),
        opset: int = OPSET,
        name: str = "the_node",
        **attributes: Any,
    ) -> onnx.ModelProto:
        names = [f"out{index}" for index in range(len(outputs))]
        node = helper.make_node(operator, list(inputs), names, name=name, **attributes)
        free = {key: value for key, value in inputs.items() if key and not isinstance(value, np.ndarray | np.generic)}
        graph = helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info(key, dtype, shape) for key, (shape, dtype) in free.items()],
            [helper.make_tensor_value_info(key, dtype, None) for key, dtype in zip(names, outputs, strict=True)],
            [
                numpy_helper.from_array(np.asarray(value), key)
                for key, value in inputs.items()
                if key and key not in free
            ],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    return model_of
