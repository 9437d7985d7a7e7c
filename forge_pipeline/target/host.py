"""Which of the described CPUs this machine is, read from /proc/cpuinfo: no compiler is imported for it.

The result is one of conf/target's machines, not a list of flags as found: machines of one type resolve to
equal targets, hence to equal action keys and equal bytes.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def libc(self) -> str:
        """The C library of its system, as targets name it."""
        return "apple" if self.system == "darwin" else "glibc"


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
