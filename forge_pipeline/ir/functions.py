"""Local functions: calls are replaced by their bodies, because no later stage knows a function."""

from __future__ import annotations

import onnx
import onnx.inliner


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` without local functions: itself where it has none, else a new model.

    The inliner serialises the model twice, so it is given the weights' names without their content.
    """
    if not model.functions:
        return model
    light = onnx.ModelProto(ir_version=model.ir_version, functions=model.functions, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:  # the inliner looks at names alone
        light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    result = onnx.inliner.inline_local_functions(light)
    del result.graph.initializer[:]
    result.graph.initializer.extend(model.graph.initializer)
    return result
