"""Finds pieces of a secret content in the files of a folder: what was to be nowhere in clear."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import numpy_helper


def pieces_in(folder: Path, content: bytes, size: int = 24) -> list[Path]:
    """Return the files that hold a piece of the content."""
    pieces = [content[at : at + size] for at in range(0, len(content) - size, max(101, len(content) // 40))]
    pieces = [piece for piece in pieces if len(set(piece)) > 7]  # what is nearly all zeros is anywhere
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(piece in path.read_bytes() for piece in pieces)]


def weights_of(model: Path) -> bytes:
    """Return the bytes of a model's initializers, one after another."""
    return b"".join(numpy_helper.to_array(item).tobytes() for item in onnx.load(model).graph.initializer)
