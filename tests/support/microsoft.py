"""Models with com.microsoft's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.sums import assert_close

MICROSOFT = "com.microsoft"
Arrays = dict[str, Any]
Feeds = Sequence[Arrays]


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


def with_open_sizes(
    nodes: list[onnx.NodeProto], feeds: Feeds, constants: Arrays, outputs: Sequence[str], *, opset: int = 17
) -> onnx.ModelProto:
    """Return a model whose inputs have open sizes where ``feeds`` differ; equal ones have one name.

    Outputs are floats; a name with a colon in front of a type (``y:INT32``) is of that type.
    """
    inputs = []
    for name, array in feeds[0].items():
        shapes = [feed[name].shape for feed in feeds]
        dims = [
            sizes[0] if len(set(sizes)) == 1 else f"s{'_'.join(map(str, sizes))}" for sizes in zip(*shapes, strict=True)
        ]
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
    results = [name.split(":") for name in outputs]
    graph = helper.make_graph(
        nodes,
        "net",
        inputs,
        [
            helper.make_tensor_value_info(name, TensorProto.DataType.Value((*kind, "FLOAT")[0]), None)
            for name, *kind in results
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def assert_same_results(
    model: onnx.ModelProto, feeds: Feeds, *, within: float = 1e-5, step: float = 0
) -> onnx.ModelProto:
    """Compare a model in ONNX Runtime with what it is written out as, on every feed; return the latter.

    Floats may differ by ``within`` of the largest (1e-5: sums of 80 float32 in two orders), integers not,
    and both by a quantization's ``step``.
    """
    written = canonical_model(in_standard(model))
    left = {node.op_type for node in written.graph.node if node.domain}
    assert not left, left
    one, other = Interpreter(model), Interpreter(written)
    for feed in feeds:
        wanted, found = one(feed), other(feed)
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            assert_close(found[name], array, within=within if array.dtype.kind == "f" else 0, step=step)
    return written
