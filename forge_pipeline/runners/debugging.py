"""Builds for who looks for a fault: another model compiled as a library was, and run where that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.compile_process import Job, compile_in_subprocess
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import MachineError, TargetError
from forge_pipeline.runners.artifact import Wanted, opened
from forge_pipeline.target import Target
from forge_runtime.entries import Entries

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from forge_pipeline.data import Feed

Outputs = Mapping[str, "NDArray[Any]"]


def compiled_like(metadata: Mapping[str, Any], wanted: Wanted) -> Callable[[ModelProto, Feed], Outputs]:
    """Return what compiles a model with the options of a library, for its target, and runs it as ``wanted`` says.

    It raises CompileError and whatever the place raises; MachineError where no place runs it.
    """
    target = _target(metadata["target"], wanted.target)
    options = options_of(metadata)

    def run(model: ModelProto, feed: Feed) -> Outputs:
        job = Job(model=model, target=target, options=options, checks=None, relax_text=False)
        library = compile_in_subprocess(job).library
        with opened(library, lambda is_emulated: [feed], replace(wanted, latency_runs=1)) as artifact:
            if artifact.model is None:
                expected, found = artifact.why_not
                raise MachineError("evaluate, debug build", expected, found, "choose evaluate.runner=auto")
            return dict(artifact.model(feed))

    return run


def _target(metadata: Mapping[str, Any], otherwise: Target) -> Target:
    """Return the library's target: the file of its tag says what tiles suit it, the library what code it has."""
    try:
        described = Target.from_tag(str(metadata["tag"]))
    except TargetError:  # of a user's own, given in the command
        described = otherwise
    own: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in metadata.items()}
    return replace(described, **own)


def options_of(metadata: Mapping[str, Any]) -> Options:
    """Return the options of a library; its code can be loaded, where its own is for a linker."""
    how, entries = metadata["compile"], Entries.of(metadata, where="library")
    sizes: dict[str, set[int]] = {}
    for row in entries.rows:
        for name, size in row.extents.items():
            sizes.setdefault(name, set()).add(size)
    return Options(
        generator=how["generator"],
        opt_level=how["opt_level"],
        float16=how["float16"],
        float_arithmetic=how["float_arithmetic"],
        channel_layout=how["channel_layout"],
        amx=how["amx"],
        dims={name: tuple(sorted(several)) for name, several in sizes.items()},
        open_form=entries.is_open,
    )
