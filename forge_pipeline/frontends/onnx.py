"""ONNX files: parsed, not yet believed."""

from __future__ import annotations

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.source import Source
from forge_pipeline.frontends.table import Imported
from forge_pipeline.ir.files import open_model


def read(source: Source) -> Imported:
    """Parse an ONNX file; weights stay in it, or beside it, until they are needed. Raises ModelError."""
    try:
        opened = open_model(source.path)
    except OSError as error:
        raise ModelError(
            where=str(source.path),
            expected="a model file that can be read",
            found=error.strerror or str(error),
            fix="check the path and its permissions",
        ) from error
    return Imported(model=opened.model, external=opened.external, kind="onnx")
