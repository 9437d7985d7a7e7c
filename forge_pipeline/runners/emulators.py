"""Emulators of other CPUs, which run the static `forge-run`: QEMU's user mode, or a command of the user's own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge_pipeline.errors import ConfigError
from forge_pipeline.runners.contract import Facts, Job
from forge_pipeline.runners.here import run_here
from forge_pipeline.target.description import tags
from forge_pipeline.target.host import ARCHITECTURES

HOW_TO_GET_IT: Final = "apt-get install qemu-user"

MOST: Final = "max"
MODELS: Final[Mapping[str, str]] = {
    "generic": "cortex-a53",
    "cortex-a53": "cortex-a53",
    "cortex-a55": "cortex-a76",
    "cortex-a72": "cortex-a72",
    "cortex-a76": "cortex-a76",
    "neoverse-n1": "neoverse-n1",
    "generic-rv64": "rv64",
    "x86-64-v2": "Nehalem",
    "x86-64-v3": "Haswell",
}
"""QEMU's models of CPUs, by LLVM's word for a target's, that have no more than that; all others run on the largest.
All are in QEMU 7.0 and later: the choice is the same with any of them."""
LARGEST: Final[Mapping[str, str]] = {"aarch64": MOST, "riscv64": "rv64", "x86_64": MOST}
"""The model of the most capable CPU, by architecture."""
X86_LACKS: Final = ("avx512", "avx_vnni", "amx")
"""How the words begin for what QEMU does not emulate of x86."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """What plays a CPU of an architecture: ``command`` comes before forge-run's. Its time is no time of that CPU."""

    arch: str
    name: str
    """The same for any version and place of the program."""
    command: tuple[str, ...]
    measures_time = False

    def run(self, job: Job) -> Facts:
        """Run ``job``, as ``Place.run`` says."""
        return run_here(self.name, self.arch, job, self.command)


def own_words(emulators: object, tag: str) -> list[str]:
    """Return the words that the configuration has before forge-run's for a target; none of most.

    Raises ConfigError where ``emulators``, conf/evaluate's, is no mapping from tags to words, or has a tag that differs
    from one that there is in nothing but capitals and signs.
    """
    given = emulators if isinstance(emulators, Mapping) else {tag: None}
    found = given.get(tag, [])
    if not isinstance(found, list) or not all(isinstance(word, str) and word for word in found):
        fix = "write it as {x86-64/v4: [sde64, -skx, --]}"
        raise ConfigError("evaluate.emulators", "a program and its arguments by target tag", str(emulators), fix)
    known = tags() if given else []
    like = {_letters(name): name for name in known}
    for name in given:
        meant = like.get(_letters(str(name)), name)
        if name not in (*known, tag, meant):
            raise ConfigError("evaluate.emulators", "tags of targets", str(name), f"did you mean {meant!r}?")
    return found


def _letters(tag: str) -> str:
    return "".join(filter(str.isalnum, tag.lower()))


def emulator(arch: str) -> str | None:
    """Return the path of QEMU's program for an architecture, where it is installed."""
    name = f"qemu-{arch}"
    return shutil.which(name) or shutil.which(f"{name}-static")


def emulator_for(triple: str, cpu: str, flags: Sequence[str], own: Sequence[str] = ()) -> Emulator | str:
    """Return what plays a target's CPU, ``own`` words if there are any, or why nothing does."""
    arch = ARCHITECTURES.get(triple.partition("-")[0], "")
    if arch not in LARGEST or "-linux-" not in triple:
        return f"no emulator runs forge-run for {triple}"
    if own:
        found = shutil.which(own[0])
        command = (str(Path(found).absolute()), *own[1:]) if found else ()
        name = " ".join((Path(own[0]).name, *own[1:]))
        return Emulator(arch=arch, name=name, command=command) if found else f"there is no program {own[0]}"
    lacking = [flag for flag in flags if arch == "x86_64" and flag.startswith(X86_LACKS)]
    if lacking:
        return f"QEMU does not emulate {', '.join(lacking)}"
    program = emulator(arch)
    if program is None:
        return f"qemu-{arch} is not installed: {HOW_TO_GET_IT}"
    return qemu(arch, program, MODELS.get(cpu, LARGEST[arch]))


def qemu(arch: str, program: str, model: str) -> Emulator:
    """Return QEMU's ``program`` for an architecture, playing the CPU ``model``."""
    command = (str(Path(program).absolute()), "-cpu", model)
    return Emulator(arch=arch, name=f"qemu-{arch} -cpu {model}", command=command)
