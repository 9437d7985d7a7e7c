"""A library that was just built, loaded as its file would be."""

from __future__ import annotations

from forge_pipeline.content import Made
from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine


def loaded(library: Library, *, threads: int) -> Engine:
    """Return ``library`` ready to run; nothing of it is written to a disk. Raises as Engine does."""
    content = library.content()
    return Engine(content if isinstance(content, Made) else library.to_bytes(), threads=threads)
