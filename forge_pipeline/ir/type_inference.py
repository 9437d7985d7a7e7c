"""The types of all values, as the ONNX checker and shape inference find them, and shapes that a file states wrongly.

Exporters write shapes that their own nodes contradict: an empty one for a result, a flag without its axis. ONNX Runtime
minds none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx
from onnx import ModelProto, ValueInfoProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import Canonical
from forge_pipeline.ir.checks import check_rank, check_size
from forge_pipeline.ir.open_extents import clear_impossible, is_nameless
from forge_pipeline.ir.shape_inference import InvalidModelError, check_and_infer
from forge_pipeline.ir.traversal import every_graph

_SMALL = 1 << 16  # bytes; what shape inference may read: targets of Reshape, sizes, axes


def check_types(form: Canonical, *, max_value_bytes: int) -> ModelProto:
    """Run the ONNX checker and shape inference; return the skeleton with the types of all values inferred.

    No value is computed: large weights are stood in for by inputs of the same type. Shapes that the file states of
    results, of branches and of loops, are left out where nodes contradict them. Raises ModelError for a node that does
    not fit its schema, types that contradict each other, and a value of more than ``max_value_bytes``.
    """
    inferred = _inferred(form)
    for graph in every_graph(inferred):
        for value in (*graph.value_info, *graph.output):
            where = f"value {form.names.get(value.name, value.name)[:80]!r}"
            _check_inferred(value.type.tensor_type, where)
            check_size(value, where, max_value_bytes)
    return inferred


def _inferred(form: Canonical) -> ModelProto:
    """Return the first outline that is valid with its types. Raises what is wrong with the model as it is stated."""
    outline = _outline(form)
    refusals: list[InvalidModelError] = []
    for stated in (outline, *_less_stated(outline)):
        try:
            return check_and_infer(stated, explain=lambda message: _with_original_names(message, form.names))
        except InvalidModelError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _less_stated(outline: ModelProto) -> Iterator[ModelProto]:
    """Yield ``outline`` without shapes that it states: of results, of those of branches and loops, of both."""
    for of_results, of_inner in ((True, False), (False, True), (True, True)):
        less = ModelProto()
        less.CopyFrom(outline)
        inner = _of_subgraphs(less)
        if of_inner and not inner:
            return
        del less.graph.value_info[:]
        for value in (*(less.graph.output if of_results else ()), *(inner if of_inner else ())):
            value.type.tensor_type.ClearField("shape")
        yield less


def complete_outputs(model: ModelProto, inferred: ModelProto) -> None:
    """Give outputs what inference finds where the file is silent or wrong: a shape, a number, an extent's name.

    Shapes that are wrong inside of branches and loops are taken out.
    """
    for value, known in zip(_of_subgraphs(model), _of_subgraphs(inferred), strict=True):
        if _contradicts(value.type.tensor_type, known.type.tensor_type):
            value.type.tensor_type.ClearField("shape")
    names = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    for value, known in zip(model.graph.output, inferred.graph.output, strict=True):
        stated, true = (item.type.tensor_type.shape for item in (value, known))
        if not value.type.tensor_type.HasField("shape") or len(stated.dim) != len(true.dim):
            value.type.CopyFrom(known.type)
            clear_impossible(value.type)
        for dim, found in zip(value.type.tensor_type.shape.dim, true.dim, strict=True):
            is_wrong = found.dim_value > 0 and dim.HasField("dim_value")
            if is_wrong or (is_nameless(dim) and (found.dim_value > 0 or found.dim_param in names)):
                dim.CopyFrom(found)


def _of_subgraphs(model: ModelProto) -> list[ValueInfoProto]:
    """Return what comes out of branches and loops, in order."""
    _, *inner = every_graph(model)
    return [value for graph in inner for value in graph.output]


def _contradicts(stated: onnx.TypeProto.Tensor, found: onnx.TypeProto.Tensor) -> bool:
    """Return whether the shape that is stated has another rank, or another number, than what was found."""
    if not stated.HasField("shape"):
        return False
    pairs = zip(stated.shape.dim, found.shape.dim, strict=False)
    differ = any(a.dim_value and b.dim_value and a.dim_value != b.dim_value for a, b in pairs)
    return differ or not found.HasField("shape") or len(stated.shape.dim) != len(found.shape.dim)


def _outline(form: Canonical) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(form.skeleton)
    for weight in form.weights:
        if weight.size <= _SMALL:
            model.graph.initializer.append(weight.tensor())
        else:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(weight.header.name, weight.header.data_type, weight.header.dims)
            )
    return model


def _check_inferred(tensor: onnx.TypeProto.Tensor, where: str) -> None:
    check_rank(tensor, where)
    if any(dim.dim_value < 0 for dim in tensor.shape.dim):
        raise ModelError(
            where=where,
            expected="no negative dimension",
            found=str([dim.dim_value for dim in tensor.shape.dim[:8]]),
            fix="correct the node that computes it: what it takes away is more than there is",
        )


def _with_original_names(message: str, names: Mapping[str, str]) -> str:
    """Say which node of the file a canonical name in the checker's message stands for."""

    def told(match: re.Match[str]) -> str:
        original = names.get(match[0], "")
        return f"{match[0]} ({original[:80]!r} in the file)" if original else match[0]

    return re.sub(r"\b[A-Za-z]\w*_\d+\b", told, message)
