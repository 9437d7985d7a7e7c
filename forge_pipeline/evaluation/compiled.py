"""The compiled model, where this machine can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.errors import ArtifactError
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.runtime.host import Host

if TYPE_CHECKING:
    from forge_pipeline.runtime.bundle import Library


def obstacle(library: Library) -> str | None:
    """Return why this machine cannot run what ``library`` was compiled for; None where it can."""
    try:
        Host.this().check_target(library.metadata["target"], where="library")
    except ArtifactError as refusal:
        return f"expected {refusal.expected}, found {refusal.found}"
    return None


def load(library: Library) -> Engine:
    """Return the library loaded, to run on one thread. Raises ArtifactError."""
    return Engine(library.to_bytes(), threads=1)
