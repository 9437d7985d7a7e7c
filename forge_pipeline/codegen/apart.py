"""The compiler in a process of its own, so that a crash of it costs the caller an error message and no more.

The parent never imports TVM. The child (``worker``) reads one pickled Job and writes one pickled answer, a Compiled
or a ForgeError; what it is working on goes to stderr, so that a crash can be told from its place.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.verify import Checks
from forge_pipeline.errors import CompileError, ForgeError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

STEP = "forge-step: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to compile; ``checks`` is None where the result cannot or shall not be run here."""

    model: bytes
    target: Target
    options: Options
    checks: Checks | None
    relax_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The library, and what is for people: the errors that verification measured, the Relax text."""

    library: Library
    verification: Mapping[str, Any] | None
    relax_text: str | None


def compile_apart(job: Job) -> Compiled:
    """Compile ``job`` in a child process. Raises what the compilation raises, and CompileError where it crashed."""
    command = [sys.executable, "-m", "forge_pipeline.codegen.worker"]
    child = subprocess.run(command, input=pickle.dumps(job), capture_output=True, check=False)
    if child.returncode != 0:
        raise _crash(child.returncode, child.stderr.decode("utf-8", "replace"), job.target)
    answer = pickle.loads(child.stdout)  # noqa: S301 - written by our own child a moment ago
    if isinstance(answer, ForgeError):
        raise answer
    compiled: Compiled = answer
    return compiled


def _crash(code: int, stderr: str, target: Target) -> CompileError:
    lines = [line for line in stderr.splitlines() if line.strip()]
    step = next((line.removeprefix(STEP) for line in reversed(lines) if line.startswith(STEP)), "start")
    last = next((line for line in reversed(lines) if not line.startswith((STEP, " "))), "no message")
    died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return CompileError(
        where=f"compiling for {target.tag}, at: {step}",
        expected="the compiler to finish",
        found=f"it died ({died}): {last[:300]}",
        fix="try `compile.generator=stock` or `compile.opt_level=1`; SIGKILL means that memory ran out",
    )
