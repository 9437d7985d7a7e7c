"""A model as files: one, or where its weights stay outside (`mapped`), one for the graph and one for the weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from onnx import GraphProto, ModelProto, TensorProto

from forge_pipeline.content import Buffer, Content, Made, pieces, write
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data import INLINE_BYTES
from forge_pipeline.ir.external_data.content import content
from forge_pipeline.ir.external_data.mapped import mapped_file_of, put_inside, range_of
from forge_pipeline.ir.tensors import byte_count

PAGE: Final = 4096
"""Alignment of weights in a data file: each can be mapped by itself."""

LEAST: Final = 4096
"""Bytes of a weight from which on it goes to the data file."""

DIGEST: Final = "forge.data.sha256"
"""The metadata of a model with the SHA-256 of its data file: it changes when a weight does."""


class Writable(Protocol):
    """What is written of a model."""

    @property
    def light(self) -> ModelProto:
        """The model, with large weights by reference."""

    @property
    def is_mapped(self) -> bool:
        """Whether weights stay in files."""

    def to_bytes(self) -> bytes:
        """Return the model as one file."""


def files(module: Writable, name: str, data: str, inline_bytes: int = INLINE_BYTES) -> dict[str, Content]:
    """Return the files of a model: ``name``, and ``data`` with the large weights. Raises ModelError.

    There is no second file for a model in memory with at most ``inline_bytes`` of weights. Same content, same bytes:
    the weights are in the order of the initializers, each on a page of its own; the file ends with the last of them.
    """
    split = _split(module, data, inline_bytes)
    if split is None:
        return {name: module.to_bytes()}
    model, parts = split
    made = Made(_end(parts), lambda: _laid_out(parts))
    digest = hashlib.sha256()
    for piece in made.pieces():
        digest.update(piece)
    model.metadata_props.add(key=DIGEST, value=digest.hexdigest())
    return {name: bytes(model.SerializeToString(deterministic=True)), data: made}


def size(module: Writable, data: str = "model.data") -> int:
    """Return how many bytes a model takes in files. Raises ModelError."""
    split = _split(module, data, INLINE_BYTES)
    if split is None:
        return len(module.to_bytes())
    model, parts = split
    model.metadata_props.add(key=DIGEST, value="0" * 64)
    return int(model.ByteSize()) + _end(parts)


Parts = list[tuple[int, Content]]
"""Where in the data file each weight begins, and its content."""


def _split(module: Writable, data: str, inline_bytes: int) -> tuple[ModelProto, Parts] | None:
    """Return the model with references to the file ``data``, and what is in that; None where all fits into one."""
    light = module.light
    sizes = [byte_count(item) if item.data_type != TensorProto.STRING else 0 for item in light.graph.initializer]
    if not module.is_mapped and sum(sizes) <= inline_bytes:
        return None
    model = without_initializers(light)
    parts: Parts = []
    for original, length in zip(light.graph.initializer, sizes, strict=True):
        if length < LEAST:
            small = model.graph.initializer.add()
            small.CopyFrom(original)
            if mapped_file_of(original) is not None:
                put_inside(small, content(original, None))
            continue
        start = -(-_end(parts) // PAGE) * PAGE
        parts.append((start, range_of(original) or Made(length, partial(_inside, original))))
        tensor = model.graph.initializer.add(name=original.name, data_type=original.data_type, dims=original.dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data), ("offset", str(start)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
    return model, parts


def _inside(tensor: TensorProto) -> Iterator[bytes]:
    yield content(tensor, None)


def without_initializers(light: ModelProto) -> ModelProto:
    """Return a copy of all but the weights, which would be a second copy of them in memory."""
    model, graph = ModelProto(), GraphProto()
    for part, source, left_out in ((graph, light.graph, "initializer"), (model, light, "graph")):
        for field, value in source.ListFields():
            if field.name == left_out or (field.name == "metadata_props" and source is light):
                continue
            if field.is_repeated:
                getattr(part, field.name).extend(value)
            elif field.message_type is not None:
                getattr(part, field.name).CopyFrom(value)
            else:
                setattr(part, field.name, value)
    model.graph.CopyFrom(graph)
    model.metadata_props.extend(entry for entry in light.metadata_props if entry.key != DIGEST)
    return model


def _end(parts: Parts) -> int:
    return parts[-1][0] + len(parts[-1][1]) if parts else 0


def _laid_out(parts: Parts) -> Iterator[Buffer]:
    position = 0
    for start, part in parts:
        if start > position:
            yield bytes(start - position)
        yield from pieces(part)
        position = start + len(part)


def save(module: Writable, path: Path, inline_bytes: int) -> None:
    """Write a model to ``path``, and its weights beside it where they stay outside; see ``ONNXModule.save``."""
    data = f"{path.name}.data"
    try:
        with TemporaryDirectory(prefix=".save-", dir=path.parent) as folder:
            contents = files(module, path.name, data, inline_bytes)
            for name, content in contents.items():
                with (Path(folder) / name).open("wb") as stream:
                    write(content, stream.fileno())
                    os.fsync(stream.fileno())
            for name in sorted(contents, key=path.name.__eq__):  # the model last: then its weights are there
                (Path(folder) / name).replace(path.parent / name)
    except OSError as error:
        raise ModelError(
            where=str(path),
            expected="a place that can be written",
            found=error.strerror or type(error).__name__,
            fix="choose another place, or make room in this one",
        ) from error
