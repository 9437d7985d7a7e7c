"""`forge-run` as a process of this machine, alone or within an emulator."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from forge_pipeline import children
from forge_pipeline.runners.contract import Facts, Job, facts_of
from forge_pipeline.runtime.native import native_runner
from forge_pipeline.target import HOST
from forge_pipeline.target.host import ARCHITECTURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This machine."""

    measures_time = True

    @property
    def name(self) -> str:
        """The tag that stands for this machine."""
        return HOST

    def run(self, job: Job) -> Facts:
        """Run ``job``, as ``Place.run`` says."""
        arch = platform.machine().lower()
        return run_here(self.name, ARCHITECTURES.get(arch, arch), job)


def run_here(name: str, arch: str, job: Job, before: Sequence[str] = ()) -> Facts:
    """Run forge-run for ``arch``, with the words of an emulator ``before`` it, as ``Place.run`` says.

    None of our descriptors and secrets reaches it, and it ends with us.
    """
    inputs = {name: str(path) for name, path in job.inputs.items()}
    key = None if job.seal is None else str(job.seal.key)
    command = [*before, str(native_runner(arch)), str(job.library), *job.arguments(inputs, str(job.folder), key)]
    ended = children.run_apart(command, b"" if job.seal is None else job.seal.password.reveal())
    if ended.status != 0:
        raise job.refusal(name, ended.status, ended.said, str(job.library), key)
    return facts_of(ended.answer.decode("utf-8", "replace"))
