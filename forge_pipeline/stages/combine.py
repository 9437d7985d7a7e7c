"""libraries of several CPUs -> library: what ``compile`` gave for each, as variants of one file."""

from __future__ import annotations

from dataclasses import dataclass

from forge_pipeline.errors import MachineError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.variants import Combined
from forge_pipeline.runtime.variants import combine as combined
from forge_pipeline.stages.contract import PART, Result, step


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """A target for several CPUs: its name, and the tags of theirs, in the order in which they are preferred."""

    tag: str
    variants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The target alone: all else was decided for each CPU."""

    target: Several


def run(config: Config, **parts: Library) -> Result:
    """Return one library with all of ``parts`` as variants.

    Each that this machine runs is opened. Raises ConfigError for libraries that do not go together, and ArtifactError
    for what does not open.
    """
    libraries = [parts[step(PART, tag)] for tag in config.target.variants]
    made = combined(libraries)
    for tag in made.tags:
        tried(made, tag)
    apart = sum(len(library.content()) for library in libraries)
    sizes = {"together": len(made.content()), "apart": apart}
    return Result(output=made, report={"variants": list(made.tags), "sizes": sizes, "fallbacks": []})


def tried(made: Combined, tag: str) -> str | None:
    """Open a variant, which is not run; return why it was not, where that is this machine. Raises ArtifactError."""
    from forge_pipeline.content import in_memory
    from forge_runtime.engine import Engine

    try:
        Engine(bytes(in_memory(made.content())), variant=tag, threads=1)
    except MachineError as error:
        return error.found
    return None
