"""What the elements of a tensor are, wherever they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from onnx import TensorProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import windows_of
from forge_pipeline.ir.tensors import _TYPED, byte_count, element_count

if TYPE_CHECKING:
    from forge_pipeline.ir.external_data.mapped import MappedFile


class ExternalData(Protocol):
    """Finds the content of a tensor that is stored outside the protobuf."""

    def __call__(self, tensor: TensorProto) -> bytes:
        """Return the bytes that ``tensor.external_data`` refers to. Raises ModelError."""

    def chunks(self, tensor: TensorProto) -> Iterator[memoryview]:
        """Yield them in windows, each good until the next. Raises ModelError."""

    def place(self, tensor: TensorProto) -> tuple[MappedFile, int, int]:
        """Return the open file that they are in, their start and their length. Raises ModelError."""


def content(tensor: TensorProto, external: ExternalData | None) -> bytes:
    """Return the tensor's elements as ``raw_data`` would hold them, whatever the storage; not for strings.

    Raises ModelError where the length does not fit the shape, or where the content is elsewhere and
    ``external`` is None.
    """
    raw = _stored(tensor, external)
    if min(tensor.dims, default=0) < 0 or len(raw) != byte_count(tensor):
        raise _misfit(tensor, f"{byte_count(tensor)} bytes", f"{len(raw)} bytes")
    return raw


def check_strings(tensor: TensorProto) -> None:
    """Raise ModelError where a tensor of strings has not as many as its shape says."""
    count = element_count(tensor.dims)
    if min(tensor.dims, default=0) < 0 or len(tensor.string_data) != count:
        raise _misfit(tensor, f"{count} strings", f"{len(tensor.string_data)} strings")


def _misfit(tensor: TensorProto, expected: str, found: str) -> ModelError:
    return ModelError(
        where=f"tensor {tensor.name[:80]!r}",
        expected=f"{expected} for shape {list(tensor.dims[:8])}",
        found=found,
        fix="the file is damaged or was cut: export the model again",
    )


def _stored(tensor: TensorProto, external: ExternalData | None) -> bytes:
    if tensor.data_location == TensorProto.EXTERNAL:
        windows = windows_of(tensor)
        if windows is not None:
            return b"".join(windows)
        if external is None:
            raise ModelError(
                where=f"tensor {tensor.name!r}",
                expected="its content inside the model",
                found="a reference to another file",
                fix="load the model from its file, or give its folder: ONNXModule(model, folder=FOLDER)",
            )
        return external(tensor)
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    field, dtype = _TYPED.get(tensor.data_type, ("int32_data", "<u1"))
    entries = np.array(getattr(tensor, field), dtype=_wide(field))
    return entries.astype(dtype, casting="unsafe").tobytes()


def _wide(field: str) -> str:
    return {"float_data": "<f4", "double_data": "<f8", "uint64_data": "<u8"}.get(field, "<i8")
