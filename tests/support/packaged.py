"""A model that is packaged in every form."""

from __future__ import annotations

from dataclasses import dataclass

from forge_pipeline.packaging.objects import Objects
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target


@dataclass(frozen=True)
class Packaged:
    """``library`` is a file that forge-run opens, of the same code as ``objects``."""

    target: Target
    library: Library
    objects: Objects
