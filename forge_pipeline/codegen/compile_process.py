"""The compiler in a process of its own, so that a crash of it costs the caller an error message and no more.

The parent never imports TVM. The child (``worker``) reads one pickled Request and writes one pickled answer, a Compiled
or a ForgeError; what it is working on goes to stderr, so that a crash can be told from its place.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline import children, limits
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.shelf import Shelf, lent
from forge_pipeline.codegen.verification.judge import Feed
from forge_pipeline.codegen.verification.verify import Checks
from forge_pipeline.content import FileRange, OpenFile
from forge_pipeline.errors import CompileError, ForgeError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

if TYPE_CHECKING:
    from onnx import ModelProto

STEP = "forge-step: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to compile; ``checks`` is None where the result cannot or shall not be run here.

    ``feeds`` are inputs to compare on, before others are made up. Weights of ``model`` may be in files
    (``ir.external_data.mapped``). ``dump`` is a folder for the texts of all steps: the child writes them as it goes, so
    that they are there where the compiler dies.
    """

    model: ModelProto
    target: Target
    options: Options
    checks: Checks | None
    relax_text: bool
    dump: Path | None = None
    feeds: Sequence[Feed] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job as the child gets it: the model without what is in files.

    ``files`` are what its weights refer to: the name there, and an open file that the child inherits. ``section`` is
    an open file, too, for the library's weights; ``shelf``
    leads to where kernels are kept, if anywhere. ``only_reads``: the model is looked at, and nothing is compiled.
    """

    job: Job
    files: tuple[tuple[str, int], ...]
    section: int
    shelf: int | None
    only_reads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The library, and what is for people: the errors that verification measured, the Relax text.

    On its way from the child the library is without its weights, which are in the section's file.
    """

    library: Library
    verification: Mapping[str, Any] | None
    relax_text: str | None


def compile_in_subprocess(job: Job, shelf: Shelf | None = None) -> Compiled:
    """Compile ``job`` in a child process. Raises what the compilation raises, and CompileError where it crashed.

    Kernels that are on the ``shelf`` are not made again, and others are put there: the library is the same. Its
    weights are in a temporary file.
    """
    section = OpenFile.temporary()
    answer = _answer(job, section, shelf)
    if answer is None:
        raise AssertionError("a job that is not only read is compiled")
    library = replace(answer.library, weights=FileRange(section, 0, section.size))
    return replace(answer, library=library)


def check_in_subprocess(job: Job) -> None:
    """Look at ``job`` in a child process. Raises what ``build.check`` raises, in the time that it takes to load TVM."""
    _answer(job, OpenFile.temporary(), only_reads=True)


def _answer(job: Job, section: OpenFile, shelf: Shelf | None = None, *, only_reads: bool = False) -> Compiled | None:
    from forge_pipeline.ir.external_data.mapped import mapped_files

    files = tuple((mapped.location, mapped.file.descriptor) for mapped in mapped_files(job.model))
    command = children.python("-m", "forge_pipeline.codegen.compile_worker")
    with lent(shelf) as line:
        request = Request(job=job, files=files, section=section.descriptor, shelf=line, only_reads=only_reads)
        inherited = [*(descriptor for _, descriptor in files), section.descriptor, *([] if line is None else [line])]
        child = children.run_apart(command, pickle.dumps(request), files=inherited)
    if child.status != 0:
        raise _crash(child, job.target)
    answer = pickle.loads(child.answer)  # noqa: S301 - written by our own child a moment ago
    if isinstance(answer, ForgeError):
        raise answer
    compiled: Compiled | None = answer
    return compiled


def _crash(child: children.Ended, target: Target) -> ForgeError:
    lines = [line for line in child.said.splitlines() if line.strip()]
    step = next((line.removeprefix(STEP) for line in reversed(lines) if line.startswith(STEP)), "start")
    raised = max((at for at, line in enumerate(lines) if line.startswith("Traceback")), default=None)
    said = lines[::-1] if raised is None else lines[raised + 1 :]  # behind what was raised, TVM may warn of it
    last = next((line for line in said if not line.startswith((STEP, " "))), "no message")
    where, found = f"compiling for {target.tag}, at: {step}", f"the compiler died ({child.how}): {last[:300]}"
    return limits.blamed(where, found) or CompileError(
        where=where,
        expected="the compiler to finish",
        found=found,
        fix="try `compile.generator=stock` or `compile.opt_level=1`; SIGKILL means that memory ran out",
    )
