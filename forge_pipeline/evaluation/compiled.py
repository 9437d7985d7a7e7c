"""The compiled model, where this machine can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.errors import MachineError
from forge_pipeline.runtime.unpacked import loaded
from forge_runtime.engine import Engine

if TYPE_CHECKING:
    from forge_pipeline.runtime.bundle import Library


def load(library: Library) -> Engine | MachineError:
    """Return the library loaded, to run on one thread, or the runtime's refusal where it is for another machine.

    Raises ArtifactError for any other obstacle.
    """
    try:
        return loaded(library, threads=1)
    except MachineError as refusal:
        return refusal
