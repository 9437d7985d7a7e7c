"""A model in ONNX's own operators: com.microsoft's are written out, in an operator set that has what that takes."""

from __future__ import annotations

import math

import onnx
from onnx import ModelProto, TensorProto, helper, version_converter

from forge_pipeline.ir.qdq.qoperator import STANDARD, opset_of, reasons, write_out, written_with_needs
from forge_pipeline.ir.qdq.writer import MICROSOFT, SMALL
from forge_pipeline.ir.traversal import every_node

PER_CHANNEL = 13
"""The operator set from which on DequantizeLinear may have several scales."""
REFUSALS = (onnx.shape_inference.InferenceError, version_converter.ConvertError, onnx.checker.ValidationError)
"""What ONNX raises for a damaged node, beside RuntimeError: none of them is one."""


def in_standard(model: ModelProto) -> ModelProto:
    """Return ``model`` without com.microsoft's operators, where they can be written out.

    Before operator set 13 ONNX has no pairs with a scale for each channel, before 21 none with one for each block: such
    a model is brought to that set. ``model`` itself where that fails, for the caller to refuse what ONNX does not know.
    """
    if not any(node.domain == MICROSOFT for node in model.graph.node):
        return model
    written, needed = written_with_needs(model)
    needed = max(PER_CHANNEL, needed)
    if written is model or opset_of(model) >= needed:
        return written
    if any(node.domain not in STANDARD for node in every_node(written)):
        return model
    raised = _in_opset(model, written, needed)
    return model if raised is None else write_out(raised)


def kept(model: ModelProto) -> dict[str, str]:
    """Return why operators of com.microsoft are still in ``model``, by the name of their first result."""
    return reasons(model) if any(node.domain == MICROSOFT for node in model.graph.node) else {}


def _in_opset(model: ModelProto, written: ModelProto, opset: int) -> ModelProto | None:
    """Return ``model`` in a newer operator set, None where ONNX's converter does not know how.

    The converter leaves operators of other domains alone. It asks for shapes, which are known where those operators are
    ``written`` out; and weights are inputs for it, which it would copy.
    """
    light = _without_weights(model)
    if all(entry.domain != MICROSOFT for entry in light.opset_import):  # NNCF writes its operators without saying so
        light.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    names = {name for node in model.graph.node for name in node.output} - {value.name for value in model.graph.output}
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_weights(written))
        light.graph.value_info.extend(value for value in inferred.graph.value_info if value.name in names)
        converted = version_converter.convert_version(light, opset)
    except (RuntimeError, *REFUSALS):
        return None
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.value_info[:], result.opset_import[:]
    result.graph.node.extend(converted.graph.node)
    result.graph.value_info.extend(light.graph.value_info)
    result.opset_import.extend(converted.opset_import)
    known = {tensor.name for tensor in model.graph.initializer}
    result.graph.initializer.extend(tensor for tensor in converted.graph.initializer if tensor.name not in known)
    return result


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy whose large constants are inputs, and that has no types but those of its interface."""
    light = ModelProto()
    light.CopyFrom(model)
    del light.graph.initializer[:], light.graph.value_info[:]
    stated = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= SMALL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in stated:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light
