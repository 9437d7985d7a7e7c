"""Reading a model's file without its weights: they stay where they are until somebody asks for them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from forge_pipeline.content import OpenFile
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data import protobuf_wire
from forge_pipeline.ir.external_data.file_kinds import KINDS, kind_of, unreadable
from forge_pipeline.ir.external_data.mapped import MappedFile, mapped_file_of, mapped_files, put_inside, refer
from forge_pipeline.ir.external_data.resolve import ExternalFiles
from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.ir.traversal import every_graph

_LARGE = 4096  # bytes; smaller weights are read with the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A parsed model whose large weights are still in its file or beside it, and what reads them.

    ``mapped_files`` are open files that its tensors refer to: the references are good for as long as somebody has this.
    """

    model: ModelProto
    external: ExternalFiles
    mapped_files: tuple[MappedFile, ...] = ()

    @property
    def outside(self) -> int:
        """How many bytes of the main graph's weights are not in ``model``."""
        return sum(byte_count(tensor) for tensor in self.model.graph.initializer if _is_elsewhere(tensor))


def open_model(path: Path, own: Mapping[str, Path] | None = None) -> OpenModel:
    """Parse the model in ``path``, not yet believed; external data is found, not read.

    Raises ModelError where it does not parse, or cannot be read.
    ``own`` are data files that this project wrote, by the name that the model has for them.
    """
    try:
        mapped = MappedFile(OpenFile.of(path))
        with mmap.mmap(mapped.file.descriptor, 0, access=mmap.ACCESS_READ) as data:
            protobuf_wire.check_text(data, below=_LARGE)
            light = protobuf_wire.without_weights(data, location=mapped.location, at_least=_LARGE)
        model = ModelProto.FromString(light)
    except (DecodeError, protobuf_wire.WireError, ValueError) as error:  # ValueError: mmap of an empty file
        kind = KINDS[kind_of(path)]
        is_other = kind not in (KINDS["onnx"], KINDS["unknown"])
        raise ModelError(
            where=str(path),
            expected="an ONNX model",
            found=kind.title if is_other else f"a damaged or cut file ({error})",
            fix=kind.advice if is_other else "copy or export the model again",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return OpenModel(model=model, external=ExternalFiles(folder=path.parent, own=own or {}), mapped_files=(mapped,))


def with_weights(opened: OpenModel) -> ModelProto:
    """Return the model with every tensor's content inside; ``opened`` gives its model away. Raises ModelError."""
    for graph in every_graph(opened.model):
        for tensor in _tensors(graph):
            _fetch(tensor, opened.external)
    return opened.model


def with_references(opened: OpenModel) -> OpenModel:
    """Return the model with the main graph's large weights as references to open files, all else inside.

    ``opened`` gives its model away. Raises ModelError.
    """
    for tensor in opened.model.graph.initializer:
        if byte_count(tensor) >= _LARGE and _is_elsewhere(tensor):
            refer(tensor, *opened.external.place(tensor))
    kept = mapped_files(opened.model)
    for graph in every_graph(opened.model):
        for tensor in _tensors(graph):
            if mapped_file_of(tensor) not in kept:
                _fetch(tensor, opened.external)
    return OpenModel(model=opened.model, external=opened.external, mapped_files=kept)


def _is_elsewhere(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _fetch(tensor: TensorProto, external: ExternalFiles) -> None:
    if _is_elsewhere(tensor):
        put_inside(tensor, external(tensor))


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
