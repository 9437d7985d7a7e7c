"""Reading a model's file without its weights: they stay where they are until somebody asks for them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir import wire
from forge_pipeline.ir.external import OWN_FILE, ExternalFiles, OwnFile
from forge_pipeline.ir.order import every_graph

_LARGE = 4096  # bytes; smaller weights are read with the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A parsed model whose large weights are still in its file, and what reads them."""

    model: ModelProto
    external: ExternalFiles


def open_model(path: Path) -> OpenModel:
    """Parse the model in ``path``; external data is found, not read. Raises ModelError where it does not parse."""
    own = OwnFile(path)
    try:
        with mmap.mmap(own.descriptor, 0, access=mmap.ACCESS_READ) as data:
            wire.check_text(data)
            light = wire.without_weights(data, location=OWN_FILE, at_least=_LARGE)
        model = ModelProto.FromString(light)
    except (DecodeError, wire.WireError, ValueError) as error:  # ValueError: mmap of an empty file
        raise ModelError(
            where=str(path),
            expected="an ONNX model",
            found=f"a damaged or cut file ({error})",
            fix="copy or export the model again",
        ) from error
    return OpenModel(model=model, external=ExternalFiles(folder=path.parent, own=own))


def with_weights(opened: OpenModel) -> ModelProto:
    """Return the model with every tensor's content inside; ``opened`` gives its model away. Raises ModelError."""
    for graph in every_graph(opened.model):
        for tensor in _tensors(graph):
            if tensor.data_location == TensorProto.EXTERNAL:
                tensor.raw_data = opened.external(tensor)
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
    return opened.model


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors
