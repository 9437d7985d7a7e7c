"""Which of the described CPUs this machine is, read from /proc/cpuinfo: no compiler is imported for it.

The result is one of conf/target's machines, not a list of flags as found: machines of one type resolve to
equal targets, hence to equal action keys and equal bytes.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forge_pipeline.config import bind
from forge_pipeline.errors import TargetError
from forge_pipeline.target.description import HOST, Target, described

CPUINFO = Path("/proc/cpuinfo")
ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a target is matched with. ``ids``: the x86 vendor, or implementer/part of each kind of ARM
    core."""

    arch: str
    system: str
    ids: frozenset[str]
    flags: frozenset[str]
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    """All that conf/target/host.yaml says: the machine itself says the rest."""

    tag: str
    description: str


def resolve_host(values: object, *, where: str) -> Target:
    """Return this machine's target, tagged `host`; ConfigError for options, TargetError if none fits."""
    bind(_HostFile, values, where=where)
    return _this_target()


@functools.cache
def _this_target() -> Target:
    """Match this machine once: neither it nor the described targets change while a process runs."""
    machine = this_machine()
    match = best_match(machine, described())
    return replace(match, tag=HOST, description=f"this machine, as {match.tag}", cores=machine.cores)


def this_machine() -> Machine:
    """Describe the machine that runs this process."""
    arch = platform.machine().lower()
    ids, flags = (
        parse_cpuinfo(CPUINFO.read_text("utf-8", "replace")) if CPUINFO.exists() else (frozenset(), frozenset())
    )
    return Machine(
        arch=ARCHITECTURES.get(arch, arch),
        system=sys.platform,
        ids=ids,
        flags=flags,
        cores=os.cpu_count() or 1,
    )


def parse_cpuinfo(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return CPU ids and the flags that every core has, from the text of /proc/cpuinfo."""
    ids: set[str] = set()
    flags: frozenset[str] | None = None
    implementer = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "vendor_id":
            ids.add(value)
        elif key == "CPU implementer":
            implementer = value
        elif key == "CPU part":
            ids.add(f"{implementer}/{value}")
        elif key in ("flags", "Features"):
            flags = frozenset(value.split()) if flags is None else flags & frozenset(value.split())
    return frozenset(ids), flags or frozenset()


def best_match(machine: Machine, targets: Sequence[Target]) -> Target:
    """Return the most capable CPU target whose flags and id ``machine`` has.

    A named CPU is preferred to a generic level with as many flags: its caches are known. Raises TargetError.
    """
    fitting = [
        target
        for target in targets
        if target.kind == "llvm"
        and ARCHITECTURES[target.arch] == machine.arch
        and target.libc == _libc(machine)
        and machine.flags.issuperset(target.cpu_flags)
        and (target.cpu_id is None or target.cpu_id in machine.ids)
    ]
    if not fitting:
        raise TargetError(
            where="target host",
            expected="a machine that one of conf/target describes",
            found=f"{machine.arch} on {machine.system}, CPU {', '.join(sorted(machine.ids)) or 'unknown'}",
            fix="name a target (`forge-pipeline targets` lists them), or describe this CPU in conf/target",
        )
    return max(
        fitting,
        key=lambda target: (len(target.cpu_flags), target.cpu_id is not None, -len(target.tag), target.tag),
    )


def why_not_here(target: Target) -> str | None:
    """Return why this machine cannot run code for ``target``, or None where it can."""
    machine = this_machine()
    if target.kind != "llvm":
        return f"needs a GPU ({target.cuda_arch})"
    if ARCHITECTURES[target.arch] != machine.arch:
        return f"needs {target.arch}, this machine is {machine.arch}"
    if target.libc != _libc(machine):
        return f"needs {target.libc}, this machine has {_libc(machine)}"
    missing = sorted(set(target.cpu_flags) - machine.flags)
    return f"this machine's CPU lacks {', '.join(missing)}" if missing else None


def _libc(machine: Machine) -> str:
    return "apple" if machine.system == "darwin" else "glibc"
