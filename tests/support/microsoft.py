"""Models with com.microsoft's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
Arrays = dict[str, Any]


def model(nodes: list[onnx.NodeProto], feeds: Arrays, constants: Arrays, *outputs: str, opset: int) -> onnx.ModelProto:
    """Return a model whose inputs are ``feeds``."""
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def own(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=MICROSOFT, **attributes)


def weight_in_blocks(opset: int, **changes: Any) -> onnx.ModelProto:
    """Return a product by a weight of four bits, (16, 8) in blocks of 16, with changed attributes or inputs."""
    random: Any = np.random.default_rng(6)
    constants: Arrays = {
        "w": random.integers(0, 256, (8, 1, 8)).astype(np.uint8),
        "s": random.uniform(0.5, 1, (8, 1)).astype(np.float32),
        **{name: array for name, array in changes.items() if isinstance(array, np.ndarray)},
    }
    attributes = {"K": 16, "N": 8, "block_size": 16, "bits": 4}
    attributes.update({name: value for name, value in changes.items() if name in attributes})
    given = {name: value for name, value in attributes.items() if value is not None}
    inputs = changes.get("inputs", ["x", "w", "s"])
    return model(
        [own("MatMulNBits", inputs, ["y"], **given)], {"x": np.ones((2, 16), np.float32)}, constants, "y", opset=opset
    )
