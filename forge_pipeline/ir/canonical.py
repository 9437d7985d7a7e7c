"""The canonical form of an ONNX model: one model, one sequence of bytes.

Two models that differ in nothing but names of inner values and nodes, the order in which nodes, weights and
attributes are written down, how weights are stored, documentation, producer, inferred shapes or unused parts
have the same canonical form. What is kept: every edge, operator, attribute, weight and element type, the
versions of the operator sets in use, and the interface (names, order, element types and shapes of inputs and
outputs).

Decisions:

- Nodes are in depth-first post-order from the outputs, which depends on the graph alone and not on its
  spelling. Values are called ``v0, v1, ...``, weights ``w0, w1, ...`` in the order of first use, nodes
  ``OpType_k``.
- What no output depends on is left out: ONNX operators have no side effects.
- An initializer that is also listed as an input (required before IR version 4, an overridable default since)
  is a constant.
- An open extent of an input has a name: its own, or the input's and the axis. Numbers below 1 are open extents
  (``open_extents``).
- Equal weights stay separate: merging them is an optimisation, and changes what training would mean.
- Calls of local functions are inlined, by ``onnx.inliner``.
- Inferred types (``value_info``), quantization annotations, training and device information, and metadata are
  not part of what a model computes. What the numbers of its interface stand for (``labels``) is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical_writer import GRAPH_NAME, Weight, Writer, plain_domain
from forge_pipeline.ir.external_data.content import ExternalData
from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.ir.labels import labels_of, set_labels

IR_VERSION = 10  # read by every tool of the pipeline
_NEWER_TYPES = {
    TensorProto.FLOAT4E2M1: 11,
    TensorProto.FLOAT8E8M0: 12,
    TensorProto.UINT2: 13,
    TensorProto.INT2: 13,
    TensorProto.FLOAT6E2M3: 14,
    TensorProto.FLOAT6E3M2: 14,
}  # element type -> the IR version that brought it
PROTOBUF_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """A model in canonical form, its weights left where they are.

    ``skeleton`` is the model without the main graph's initializers, ``weights`` are these in canonical order,
    ``names`` maps each canonical name that is not the original one to the original one.
    """

    skeleton: ModelProto
    weights: tuple[Weight, ...]
    names: Mapping[str, str]


def canonical(model: ModelProto, *, external: ExternalData | None = None) -> Canonical:
    """Return the canonical form of ``model``, which stays as it was.

    ``external`` finds the content of tensors that are stored outside and lie within nodes; weights of the
    main graph are not read. Raises ModelError for a graph with a cycle, an undefined or a twice defined
    value.
    """
    model = inline_functions(model)
    skeleton = ModelProto()
    skeleton.graph.name = GRAPH_NAME
    writer = Writer(reserved=frozenset(_interface(model.graph)), external=external)
    weights = writer.main(model.graph, skeleton.graph)
    _imports(model, skeleton, writer.domains)
    set_labels(skeleton, labels_of(model))
    skeleton.ir_version = max(IR_VERSION, *(_NEWER_TYPES.get(kind, 0) for kind in writer.types))
    return Canonical(skeleton=skeleton, weights=weights, names=writer.names)


def canonical_model(model: ModelProto, *, external: ExternalData | None = None) -> ModelProto:
    """Return ``model`` in canonical form as a model of its own. Raises ModelError."""
    return whole(canonical(model, external=external))


def whole(form: Canonical) -> ModelProto:
    """Return a canonical form as one model, every weight inline. Raises ModelError where that is too large."""
    model = ModelProto()
    model.CopyFrom(form.skeleton)
    size = 0
    for weight in form.weights:
        model.graph.initializer.append(weight.tensor())
        size += weight.size
        if size > PROTOBUF_LIMIT:
            raise ModelError(
                where="model",
                expected=f"weights of at most {PROTOBUF_LIMIT} bytes, what one protobuf message holds",
                found=f"{sum(weight.size for weight in form.weights)} bytes",
                fix="work with ONNXModule, whose weights stay in their files, or store them in float16",
            )
    return model


def by_reference(form: Canonical) -> ModelProto:
    """Return a canonical form as one model whose large weights stay in files (``ir.external_data.mapped``)."""
    model = ModelProto()
    model.CopyFrom(form.skeleton)
    model.graph.initializer.extend(weight.reference() for weight in form.weights)
    return model


def _interface(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (value.name for value in graph.output)


def _imports(model: ModelProto, skeleton: ModelProto, used: set[str]) -> None:
    versions = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    for domain in sorted(used | {""}):
        if domain in versions:
            skeleton.opset_import.add(domain=domain, version=versions[domain])
