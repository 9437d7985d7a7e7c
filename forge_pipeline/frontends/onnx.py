"""ONNX files: parsed, not yet believed."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.source import Source
from forge_pipeline.frontends.table import Imported
from forge_pipeline.ir import wire
from forge_pipeline.ir.external import ExternalFiles

PROTOBUF_LIMIT = (1 << 31) - 1  # bytes in one message


def read(source: Source) -> Imported:
    """Parse an ONNX file. External data is found, never read here. Raises ModelError where it does not parse."""
    path = source.path
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= PROTOBUF_LIMIT else b""
    except OSError as error:
        raise ModelError(
            str(path), "a model file that can be read", str(error.strerror), "check the path and its permissions"
        ) from error
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            where=str(path),
            expected="at most 2 GiB in one file, the limit of ONNX's encoding",
            found=f"{size} bytes",
            fix="save the model with external data: `onnx.save(model, path, save_as_external_data=True)`",
        )
    try:
        wire.check_text(content)
        model = ModelProto.FromString(content)
    except (DecodeError, wire.WireError) as error:
        raise ModelError(
            where=str(path),
            expected="an ONNX model",
            found=f"a damaged or cut file ({error})",
            fix="copy or export the model again",
        ) from error
    return Imported(model=model, external=ExternalFiles(folder=path.parent), kind="onnx")
