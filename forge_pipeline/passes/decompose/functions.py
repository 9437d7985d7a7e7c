"""Operators spelt out in simpler ones, by the function bodies that ONNX's own specification gives them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import FunctionProto, NodeProto, TypeProto, helper

from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.passes.contract import Tolerance, Transformation, verified
from forge_pipeline.passes.errors import PassError
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.subgraphs import apply_to_bodies

DOMAIN = "forge.decomposed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecomposeOptions:
    """``operators``: names of operators of ONNX's own domain that its specification defines as functions."""

    operators: list[str]


@verified(Tolerance())
class DecomposeFunctions(Transformation[DecomposeOptions]):
    """Replace LayerNormalization, Gelu, Attention, MeanVarianceNormalization ... by what defines them."""

    in_bodies = False
    options_type = DecomposeOptions

    def requires(self, graph: Graph) -> None:
        """Every operator asked for is a function at the model's operator set."""
        for name in self.options.operators:
            try:
                schema = onnx.defs.get_schema(name, graph.opset())
            except onnx.defs.SchemaError as error:
                raise _unknown(name, f"no such operator in set {graph.opset()}") from error
            if not (schema.has_function or schema.has_context_dependent_function):
                raise _unknown(name, "a primitive operator")

    def call(self, graph: Graph) -> int:
        """Call a local function in place of each node, then inline all of them."""
        functions: list[FunctionProto] = []

        def mark(part: Graph) -> int:
            before = len(functions)
            for node in part.nodes:
                if node.op_type in self.options.operators and node.domain in ("", "ai.onnx"):
                    body = _body(part, node)
                    if body is not None:
                        body.domain, body.name = DOMAIN, f"{node.op_type}_{len(functions)}"
                        functions.append(body)
                        node.domain, node.op_type = DOMAIN, body.name
            return len(functions) - before

        mark(graph)
        apply_to_bodies(graph, mark)
        if functions:
            model = graph.model()
            model.functions.extend(functions)
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
            flat = inline_functions(model)
            kept = [entry for entry in flat.opset_import if entry.domain != DOMAIN]
            del flat.opset_import[:]
            flat.opset_import.extend(kept)
            graph.reset(flat)
        return len(functions)


def _body(graph: Graph, node: NodeProto) -> FunctionProto | None:
    schema = onnx.defs.get_schema(node.op_type, graph.opset())
    version = graph.opset()
    if schema.has_context_dependent_function:
        types = []
        for name in node.input:
            made = TypeProto()
            if name:
                made.CopyFrom(helper.make_tensor_type_proto(graph.elem_type(name), graph.shape(name)))
            types.append(made.SerializeToString())
        versions = schema.context_dependent_function_opset_versions
        usable = [known for known in versions if known <= version]
        if not usable:
            return None
        data = schema.get_context_dependent_function_with_opset_version(max(usable), node.SerializeToString(), types)
    else:
        usable = [known for known in schema.function_opset_versions if known <= version]
        if not usable:
            return None
        data = schema.get_function_with_opset_version(max(usable))
    if not data:
        return None
    body = FunctionProto.FromString(data)
    body.opset_import[0].version = version
    return body


def _unknown(name: str, found: str) -> PassError:
    return PassError(
        where="pass 'decompose-functions', option operators",
        expected="operators that ONNX's specification defines as functions of others",
        found=f"{name!r}: {found}",
        fix="leave it out",
    )
