"""A model in ONNX's own operators: com.microsoft's are written out, in an operator set that has what that takes."""

from __future__ import annotations

import math

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, version_converter

from forge_pipeline.ir.contrib.normalization import LAYER_NORMALIZATION
from forge_pipeline.ir.contrib.table import LAYOUTS, OWN_NAMES
from forge_pipeline.ir.contrib.writer import MICROSOFT, SMALL, STANDARD, Writer
from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.ir.qdq.qoperator import PER_CHANNEL, opset_of, reasons, write_out, written, written_with_needs
from forge_pipeline.ir.traversal import every_node, nodes_below

FOREIGN = frozenset({MICROSOFT, *LAYOUTS})
"""Domains whose operators ONNX Runtime alone knows."""
REFUSALS = (onnx.shape_inference.InferenceError, version_converter.ConvertError, onnx.checker.ValidationError)
"""What ONNX raises for a damaged node, beside RuntimeError: none of them is one."""


def in_standard(model: ModelProto) -> ModelProto:
    """Return ``model`` without com.microsoft's operators, where they can be written out.

    Before operator set 13 ONNX has no pairs with a scale for each channel, before 17 no normalization of a layer,
    before 21 no scale for each block: such a model is brought to that set. ``model`` itself where that fails, for the
    caller to refuse what ONNX does not know. Raises ModelError for local functions that cannot be inlined.
    """
    model = _with_domains(model)
    if not any(node.domain == MICROSOFT for node in every_node(model)):
        return model
    if any(node.domain == MICROSOFT for function in model.functions for node in nodes_below(function.node)):
        model = inline_functions(model)
    result, needed = written_with_needs(model)
    needed = max(PER_CHANNEL, needed)
    if result is model or opset_of(model) >= needed:
        return result
    if any(node.domain == MICROSOFT for node in every_node(result)):
        return model
    raised = _in_opset(model, needed)
    return model if raised is None else write_out(raised)


def kept(model: ModelProto) -> dict[str, str]:
    """Return why operators of ONNX Runtime are still in ``model``, by the name of their first result."""
    stayed = [node.output[0] for node in every_node(model) if node.domain in FOREIGN]
    if not stayed:
        return {}
    opset = opset_of(model)
    unraised = f"ONNX's converter does not bring operator set {opset} to one that has what it is written out as"
    return dict.fromkeys(stayed, unraised) | reasons(model)


def _with_domains(model: ModelProto) -> ModelProto:
    """Return ``model`` with the operators that ONNX Runtime writes into ONNX's domain, and ONNX has not in that
    operator set, in the domain of ONNX Runtime; itself where there are none."""
    opset = opset_of(model)
    if not any(_is_own(node, opset) for node in every_node(model)):
        return model
    renamed = ModelProto()
    renamed.CopyFrom(model)
    for node in every_node(renamed):
        if _is_own(node, opset):
            node.domain = MICROSOFT
    return renamed


def _is_own(node: NodeProto, opset: int) -> bool:
    is_defined = node.op_type == "LayerNormalization" and opset >= LAYER_NORMALIZATION
    return node.domain in STANDARD and node.op_type in OWN_NAMES and not is_defined


def _in_opset(model: ModelProto, opset: int) -> ModelProto | None:
    """Return ``model`` in a newer operator set, None where ONNX's converter does not know how.

    The converter leaves operators of other domains alone. It asks for shapes, which are known where those operators are
    written out; and weights are inputs for it, which it would copy.
    """
    light = _without_weights(model)
    if all(entry.domain != MICROSOFT for entry in light.opset_import):  # NNCF writes its operators without saying so
        light.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    writing = written(model)
    known = writing.writer if writing is not None else Writer.of(model.graph, opset)
    names = {name for node in model.graph.node for name in node.output} - {value.name for value in model.graph.output}
    light.graph.value_info.extend(
        helper.make_tensor_value_info(name, known.types[name], known.shapes[name])
        for name in sorted(names)
        if name in known.shapes and known.types.get(name)
    )
    try:
        converted = version_converter.convert_version(light, opset)
    except (RuntimeError, *REFUSALS):
        return None
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.value_info[:], result.opset_import[:]
    result.graph.node.extend(converted.graph.node)
    result.graph.value_info.extend(light.graph.value_info)
    result.opset_import.extend(converted.opset_import)
    weights = {tensor.name for tensor in model.graph.initializer}
    result.graph.initializer.extend(tensor for tensor in converted.graph.initializer if tensor.name not in weights)
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
