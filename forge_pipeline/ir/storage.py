"""A model as files: one, or where its weights stay outside (``ir.held``), one for the graph and one for the weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from onnx import ModelProto, TensorProto

from forge_pipeline.content import Buffer, Content, Made, write
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.held import held_of, windows_of
from forge_pipeline.ir.tensors import byte_count

if TYPE_CHECKING:
    from forge_pipeline.ir.onnx_module import ONNXModule

PAGE: Final = 4096
"""Alignment of weights in a data file: each can be mapped by itself."""

DIGEST: Final = "forge.data.sha256"
"""The metadata of a model with the SHA-256 of its data file: it changes when a weight does."""


def files(module: ONNXModule, name: str, data: str) -> dict[str, Content]:
    """Return the files of a model: ``name``, and ``data`` where its weights stay outside. Raises ModelError.

    Same content, same bytes. The weights are in the order of the initializers, each on a page of its own, the file
    ends with the last of them.
    """
    if not module.is_held:
        return {name: module.to_bytes()}
    model, parts = _split(module.light, data)
    made = Made(_end(parts), lambda: _laid_out(parts))
    digest = hashlib.sha256()
    for piece in made.pieces():
        digest.update(piece)
    model.metadata_props.add(key=DIGEST, value=digest.hexdigest())
    return {name: bytes(model.SerializeToString(deterministic=True)), data: made}


def size(module: ONNXModule, data: str = "model.data") -> int:
    """Return how many bytes a model takes in files. Raises ModelError."""
    if not module.is_held:
        return len(module.to_bytes())
    model, parts = _split(module.light, data)
    model.metadata_props.add(key=DIGEST, value="0" * 64)
    return int(model.ByteSize()) + _end(parts)


Parts = list[tuple[int, TensorProto]]


def _split(light: ModelProto, data: str) -> tuple[ModelProto, Parts]:
    """Return the model with references to the file ``data``, and where in it each weight is."""
    model = ModelProto()
    model.CopyFrom(light)
    parts: Parts = []
    for original, tensor in zip(light.graph.initializer, model.graph.initializer, strict=True):
        if held_of(original) is not None:
            start = -(-_end(parts) // PAGE) * PAGE
            parts.append((start, original))
            del tensor.external_data[:]
            place = {"location": data, "offset": str(start), "length": str(byte_count(original))}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
    kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != DIGEST]
    del model.metadata_props[:]
    for key, value in kept:
        model.metadata_props.add(key=key, value=value)
    return model, parts


def _end(parts: Parts) -> int:
    return parts[-1][0] + byte_count(parts[-1][1]) if parts else 0


def _laid_out(parts: Parts) -> Iterator[Buffer]:
    position = 0
    for start, tensor in parts:
        if start > position:
            yield bytes(start - position)
        yield from windows_of(tensor) or ()
        position = start + byte_count(tensor)


def save(module: ONNXModule, path: Path) -> None:
    """Write a model to ``path``, and its weights beside it where they stay outside; see ``ONNXModule.save``."""
    data = f"{path.name}.data"
    try:
        with TemporaryDirectory(prefix=".save-", dir=path.parent) as folder:
            contents = files(module, path.name, data)
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
