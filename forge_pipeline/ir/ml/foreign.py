"""What results of ONNX Runtime's own operators are, where operators of ai.onnx.ml stand behind them."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from forge_pipeline.ir.contrib.writer import MICROSOFT
from forge_pipeline.ir.qdq.qoperator import written


def results_of(
    node: NodeProto, opset: int, types: Mapping[str, TypeProto], tensors: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """Return the types of a node's results, which are those of what it will be written out as.

    ``types`` has its operands, ``tensors`` those of them that are small constants. Empty where nothing is known.
    """
    names = dict.fromkeys(name for name in node.input if name)
    if any(name not in types for name in names):
        return {}
    inputs = [ValueInfoProto(name=name, type=types[name]) for name in names if name not in tensors]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, [tensors[name] for name in names if name in tensors])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    writing = written(helper.make_model(graph, opset_imports=imports))
    if writing is None or writing.why:
        return {}
    known = writing.writer
    return {
        name: helper.make_tensor_type_proto(known.types[name], known.shapes.get(name))
        for name in node.output
        if known.types.get(name)
    }
