"""From a tensor's reference to the bytes that it means: the file, once it is known to be one that may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto

from forge_pipeline.content import OpenFile
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.content import ExternalData
from forge_pipeline.ir.external_data.mapped import MappedFile, check_place, mapped_file_of, refer
from forge_pipeline.ir.external_data.rules import opened
from forge_pipeline.ir.tensors import byte_count

_MAX_DIGITS: Final = 18  # more would overflow what protobuf and the file system count with


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFiles:
    """Finds what the tensors of a model in ``folder`` refer to. Each file is opened once, when it is first asked for.

    ``own`` has names of files that this project wrote, with their paths: they may lie anywhere, and have links.
    """

    folder: Path | None = None
    own: Mapping[str, Path] = field(default_factory=dict)
    _open: dict[str, MappedFile] = field(default_factory=dict, repr=False)

    def __call__(self, tensor: TensorProto) -> bytes:
        """Return the content of one tensor. Raises ModelError."""
        return b"".join(self.chunks(tensor))

    def chunks(self, tensor: TensorProto) -> Iterator[memoryview]:
        """Yield the content of one tensor in windows, each good until the next. Raises ModelError."""
        mapped, start, length = self.place(tensor)
        yield from mapped.windows(start, length)

    def place(self, tensor: TensorProto) -> tuple[MappedFile, int, int]:
        """Return the file of a tensor's content, and start and length in it, once these fit. Raises ModelError."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        start = _number(tensor.name, entries, "offset", 0)
        length = _number(tensor.name, entries, "length", byte_count(tensor))
        location, mapped = entries.get("location", ""), mapped_file_of(tensor)
        if mapped is None:
            mapped = self._opened(location)
            check_place(tensor, mapped, start, length, name=repr(location))
        else:
            check_place(tensor, mapped, start, length)
        return mapped, start, length

    def _opened(self, location: str) -> MappedFile:
        if location not in self._open:
            self._open[location] = MappedFile(self._file(location))
        return self._open[location]

    def _file(self, location: str) -> OpenFile:
        if location in self.own:
            return OpenFile.of(self.own[location])
        if self.folder is None:
            raise ModelError(
                where=f"external data {location[:200]!r}",
                expected="a folder to look for it in",
                found="a model without one",
                fix="load the model from its file, or give its folder: ONNXModule(model, folder=FOLDER)",
            )
        with opened(self.folder, location) as descriptor:
            return OpenFile(os.dup(descriptor), self.folder / location)


def within_reach(model: ModelProto, external: ExternalData | None) -> ModelProto:
    """Return ``model`` with references to open files in the place of those to names of files, where these are good.

    Operators that are written out as others read their weights: whoever does so needs no folder then. What is wrong
    with a reference is said by whoever takes the weights in.
    """
    outside = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    if external is None or not outside:
        return model
    made = ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            try:
                refer(tensor, *external.place(tensor))
            except ModelError:
                continue
    return made


def _number(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise ModelError(
        where=f"tensor {name!r}",
        expected=f"a plain number as {key} of its external data",
        found=repr(text[:40]),
        fix="the file is damaged or was edited by hand: export the model again",
    )
