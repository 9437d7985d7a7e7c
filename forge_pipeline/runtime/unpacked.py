"""A library that was just built, loaded as its file would be."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from forge_pipeline.content import FileRange, write, writing_temporarily
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.engine import Engine


def loaded(library: Library, *, threads: int) -> Engine:
    """Return ``library`` ready to run; one whose weights are in a file goes by way of a file. Raises as Engine does."""
    if not isinstance(library.weights, FileRange):
        return Engine(library.to_bytes(), threads=threads)
    with TemporaryDirectory(prefix="forge-library-") as folder:
        path = Path(folder) / "model_library.so"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with writing_temporarily():
                write(library.content(), descriptor)
        finally:
            os.close(descriptor)
        return Engine(path, threads=threads)
