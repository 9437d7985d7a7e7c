"""Operators that cannot be compiled as they are, written out as the ONNX standard defines them: by simpler operators.

The standard gives many operators a body (`onnx.defs`: functions, some of which depend on the types of the inputs). A
node that would be refused, or a use of one that would come out wrong, is replaced by its body; its neighbours of the
same kind, which can be compiled directly, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, defs, helper

DOMAIN = "forge.expanded"
ROUNDS = 8
"""Bodies that use operators with bodies: no operator of the standard nests deeper than four."""

Leaves = Callable[[NodeProto], bool]
"""Whether a node stays as it is."""


def expanded(model: ModelProto, is_left: Leaves) -> ModelProto:
    """Return ``model`` in which nodes that ``is_left`` does not keep are replaced by their bodies where they have one.

    The given model may be changed. What has no body stays, for the caller to report.
    """
    for _ in range(ROUNDS):
        nodes = [node for node in _nodes(model.graph) if not is_left(node)]
        found = _written_out(model, nodes) if nodes else None
        if found is None:
            break
        model = found
    return model


def defined(model: ModelProto, places: Sequence[int]) -> ModelProto | None:
    """Return ``model`` with the nodes at these places of the main graph written out; None where none has a body."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return _written_out(copy, [copy.graph.node[place] for place in places if place >= 0])


def _written_out(model: ModelProto, nodes: list[NodeProto]) -> ModelProto | None:
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:  # an operator that ONNX does not know
        inferred = model
    types = {value.name: value.type for value in _typed_values(inferred.graph)}
    return onnx.inliner.inline_local_functions(model) if _replace(model, nodes, types) else None


def _nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _replace(model: ModelProto, nodes: list[NodeProto], types: dict[str, onnx.TypeProto]) -> bool:
    """Turn each node into a call of a function that holds its body; return whether there was one."""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    made: list[FunctionProto] = []
    for node in nodes:
        body = _body(node, types, opsets)
        if body is None:
            continue
        body.domain, body.name = DOMAIN, f"{node.op_type}_{len(made)}"
        made.append(body)
        del node.attribute[:]
        node.domain, node.op_type = DOMAIN, body.name
    model.functions.extend(made)
    if made and DOMAIN not in opsets:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return bool(made)


def _body(node: NodeProto, types: dict[str, onnx.TypeProto], opsets: dict[str, int]) -> FunctionProto | None:
    """Return the body of a node with its attributes filled in, or None where the standard gives none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in opsets or not defs.has(node.op_type, domain):
        return None
    schema = defs.get_schema(node.op_type, opsets[domain], domain)
    filled = _with_defaults(node, schema)
    content: bytes | None = None
    if schema.has_context_dependent_function:
        content = _dependent_body(filled, schema, types, opsets[domain])
    elif schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= opsets[domain]]
        content = schema.get_function_with_opset_version(max(versions)) if versions else None
    if not content:
        return None
    body = FunctionProto.FromString(content)
    _fill_in(body.node, {attribute.name: attribute for attribute in filled.attribute})
    del body.attribute[:], body.attribute_proto[:], body.opset_import[:]
    body.opset_import.extend(helper.make_opsetid(name, version) for name, version in opsets.items())
    return body


def _dependent_body(
    node: NodeProto, schema: defs.OpSchema, types: dict[str, onnx.TypeProto], opset: int
) -> bytes | None:
    versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if not versions or any(name and name not in types for name in node.input):
        return None
    known = [types[name].SerializeToString() if name else b"" for name in node.input]
    content = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), known)
    return bytes(content)


def _with_defaults(node: NodeProto, schema: defs.OpSchema) -> NodeProto:
    """Return a copy of ``node`` that states the attributes it leaves to their defaults."""
    filled = NodeProto()
    filled.CopyFrom(node)
    stated = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in stated and attribute.default_value.name:
            filled.attribute.append(attribute.default_value)
    return filled


def _fill_in(nodes: list[NodeProto], values: dict[str, onnx.AttributeProto]) -> None:
    """Replace references to the function's attributes by their values; drop those that have none."""
    for node in nodes:
        kept = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in values:
                    continue
                name = attribute.name
                attribute.CopyFrom(values[attribute.ref_attr_name])
                attribute.name = name
            if attribute.HasField("g"):
                _fill_in(attribute.g.node, values)
            copy = onnx.AttributeProto()
            copy.CopyFrom(attribute)
            kept.append(copy)
        del node.attribute[:]
        node.attribute.extend(kept)


def _typed_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.value_info, *graph.output)
    for tensor in graph.initializer:
        yield helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _typed_values(attribute.g)
