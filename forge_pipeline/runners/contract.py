"""What a place is that runs artifacts with `forge-run`, and how that program's refusals become errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from forge_pipeline.errors import ArtifactError, ForgeError, MachineError
from forge_runtime.secret import Secret
from forge_runtime.text import shown

Facts = Mapping[str, Any]
"""Plain values by name: what forge-run's ``--json`` says, and what a board says of itself."""

_MESSAGE = re.compile(r"error: (.*?): expected (.*), found (.*)\nfix: (.*)", re.DOTALL)
_ANOTHER_MACHINE = re.compile("one made for |a CPU without |a system that lets processes use AMX")
_ILLEGAL = (132, -4)
"""How a process ends by an instruction that its CPU does not have: by a shell's word, and by Python's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What opens an encrypted library."""

    key: Path
    password: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of ``library``, a file, over files of samples (``inputs``, by the name of the model's input).

    A model without inputs has one sample. Outputs are to be in ``folder``: `out0.npy`, `out1.npy`, as many as
    ``outputs``. ``runs`` more are timed, no more than start within ``seconds``, but three at least. ``options`` are
    other words for forge-run, and ``where`` is what messages call the library. ``seal`` is for a library that is
    encrypted: its key file, and the password, which forge-run reads from its standard input.
    """

    library: Path
    inputs: Mapping[str, Path]
    outputs: int
    folder: Path
    runs: int
    seconds: float | None = None
    options: tuple[str, ...] = ()
    seal: Seal | None = None
    where: str = "library"

    def arguments(self, inputs: Mapping[str, str], output: str, key: str | None) -> list[str]:
        """Return forge-run's, after the library, for where its files are."""
        samples = ["--samples"] if inputs else []
        files = [f"{name}={path}" for name, path in inputs.items()]
        unlocking = [] if key is None else ["--key", key, "--password-file", "-"]
        limit = [] if self.seconds is None else ["--seconds", f"{self.seconds:g}"]
        timed = ["--runs", str(self.runs), *limit]
        return [*files, *samples, *unlocking, *self.options, "--json", "--output", output, *timed]

    def refusal(self, place: str, status: int | None, said: str, library: str, key: str | None) -> ForgeError:
        """Return the error for a forge-run that ended so, which was told of its files by these paths."""
        names = {library: self.where} if key is None else {library: self.where, key: "key file"}
        return refusal(place, status, said, names)


def facts_of(answer: str) -> dict[str, Any]:
    """Return what forge-run said: its line of JSON, and as `kernels` the lines of ``--profile``, if any."""
    line, _, rest = answer.partition("\n")
    facts: dict[str, Any] = json.loads(line)
    rows = [words for words in (row.split(maxsplit=6) for row in rest.splitlines()) if len(words) == 7]
    if rows:
        facts["kernels"] = [{"name": row[6], "milliseconds": float(row[2]), "calls": int(row[4])} for row in rows]
    return facts


class Place(Protocol):
    """A place that can run artifacts. ``measures_time``: whether its clock tells what a user would see."""

    measures_time: bool

    @property
    def name(self) -> str:
        """What it is called, for a reader, in metrics and in action keys."""

    def run(self, job: Job) -> Facts:
        """Run ``job`` and return what there is to say of it.

        Raises MachineError where the artifact is for another machine, and ForgeError for any other obstacle.
        """


def refusal(place: str, status: int | None, said: str, names: Mapping[str, str] = MappingProxyType({})) -> ForgeError:
    """Return the error for a forge-run that ended with ``status`` and ``said`` so on standard error.

    ``names``: what messages call files, by the path that forge-run was told, which its reader may not have.
    """
    found = _MESSAGE.search(said)
    if found is not None:
        where, expected, what, fix = found.groups()
        path = next((path for path in names if where.endswith(path)), "")
        where = where.removesuffix(path) + names.get(path, "")
        kind = MachineError if _ANOTHER_MACHINE.search(f"{what} {expected}") else ArtifactError
        return kind(f"{where}, in {place}", expected, what, fix.strip())
    if status in _ILLEGAL or "Illegal instruction" in said:
        fix = "name the target that describes this CPU"
        return MachineError(f"forge-run in {place}", "instructions that it has", "one that it has not", fix)
    tail = shown(" ".join(said.split())[-200:]) or "no word"
    ended = f"exit status {status}: {tail}"
    return ArtifactError(f"forge-run in {place}", "exit status 0", ended, "run forge-run there by hand with this model")
