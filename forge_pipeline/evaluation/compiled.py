"""The compiled model, where this machine can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.errors import ArtifactError
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.runtime.host import Host
from forge_pipeline.runtime.unpacked import loaded

if TYPE_CHECKING:
    from forge_pipeline.runtime.bundle import Library


def load(library: Library) -> Engine | ArtifactError:
    """Return the library loaded, to run on one thread, or the runtime's refusal where it is for another machine.

    Raises ArtifactError for any other obstacle.
    """
    try:
        Host.this().check_target(library.metadata["target"], where="library")
    except ArtifactError as refusal:
        return refusal
    return loaded(library, threads=1)
