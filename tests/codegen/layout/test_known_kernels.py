"""Where a batch of one makes sizes known, kernels that the importer wrote know them too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.layout.batch_of_one import batch_of_one
from forge_pipeline.codegen.layout.known_kernels import with_known_kernels
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

RESIZE = {"scales": np.array([1, 1, 1.5, 0.7], np.float32)}
PAD = {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1])}


def imported(node: onnx.NodeProto, shape: list[Any], weights: dict[str, np.ndarray]) -> Any:
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return import_model(prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)))


def extents(module: Any) -> list[Any]:
    """Return every extent of every tensor that a kernel of ``module`` takes."""
    from tvm import tirx

    kernels = [function for _, function in module.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert kernels, "the importer writes no kernel for this operator any more: choose another"
    return [extent for kernel in kernels for parameter in kernel.params for extent in parameter.shape]


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear"), RESIZE),
        (helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect"), PAD),
    ],
    ids=["resize", "pad"],
)
def test_kernels_of_a_batch_of_one_are_written_for_one(node: onnx.NodeProto, weights: dict[str, np.ndarray]) -> None:
    from tvm import tirx

    module = imported(node, ["N", 16, 12, 10], weights)
    assert not all(isinstance(extent, tirx.IntImm) for extent in extents(module))
    single = batch_of_one(module)
    assert single is not None
    assert all(isinstance(extent, tirx.IntImm) for extent in extents(single[0]))
    assert single[1] == {"N": 1}


def test_kernels_of_sizes_that_stay_open_stay_as_they_are() -> None:
    module = imported(helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect"), ["N", 16, "H", 10], PAD)
    assert with_known_kernels(module).script() == module.script()
