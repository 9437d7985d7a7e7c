"""ONNX files: parsed, not yet believed."""

from __future__ import annotations

from pathlib import Path

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.reader import OpenModel, open_model


def read(path: Path) -> OpenModel:
    """Parse an ONNX file; weights stay in it, or beside it, until they are needed. Raises ModelError."""
    try:
        return open_model(path)
    except OSError as error:
        raise ModelError(
            where=str(path),
            expected="a model file that can be read",
            found=error.strerror or str(error),
            fix="check the path and its permissions",
        ) from error
