"""Whether a library was made for this machine: told before anything of it is loaded, not by SIGILL."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_pipeline.errors import ArtifactError

CPUINFO = Path("/proc/cpuinfo")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other words for an architecture, in triples and in what ``uname`` says."""
SYSTEMS = {"linux": "linux", "android": "linux", "macosx": "darwin", "macos": "darwin", "darwin": "darwin"}
ELF_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}

_ELF = struct.Struct("<4sBBB9xHH")  # magic, class, byte order, version, then type and machine
_ET_DYN = 3
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18  # asm/prctl.h: ARCH_REQ_XCOMP_PERM; the state's number


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine that libraries are loaded on. ``flags`` is None where the system does not list the CPU's."""

    arch: str
    system: str
    bits: int
    flags: frozenset[str] | None

    @classmethod
    def this(cls) -> Host:
        """Describe this machine, as this process sees it."""
        arch = platform.machine().lower()
        return cls(
            arch=MACHINES.get(arch, arch),
            system=SYSTEMS.get(sys.platform, sys.platform),
            bits=8 * struct.calcsize("P"),
            flags=_cpu_flags(),
        )

    def check_target(self, target: Mapping[str, Any], *, where: str) -> None:
        """Raise ArtifactError unless this machine can run what was compiled for ``target`` (library metadata)."""
        triple = str(target["triple"])
        arch, *others = triple.split("-")
        arch = MACHINES.get(arch, arch)
        systems = {name for word in others for prefix, name in SYSTEMS.items() if word.startswith(prefix)}
        if arch != self.arch or (systems and self.system not in systems):
            raise ArtifactError(
                where,
                f"a library for this machine, which is {self.arch} with {self.system}",
                f"one made for {arch} ({target['tag']}, {triple})",
                "compile the model for this machine: target=host, or one of `forge-pipeline targets`",
            )
        if target["kind"] != "llvm":
            raise ArtifactError(
                where,
                "a library for CPUs: this runtime drives no other device",
                f"one made for {target['kind']} ({target['tag']})",
                "compile the model for a CPU, or load the library with TVM's own runtime",
            )
        missing = sorted(set(target["cpu_flags"]) - self.flags) if self.flags is not None else []
        if missing:
            raise ArtifactError(
                where,
                f"a CPU that has what {target['tag']} was compiled for",
                f"a CPU without {', '.join(missing)}",
                "compile the model for this machine: target=host, or an older generation of its family",
            )

    def check_elf(self, elf: bytes | memoryview, *, where: str) -> None:
        """Raise ArtifactError unless ``elf`` starts as a shared object of this machine does."""
        fix = "compile the model for this machine: target=host, or one of `forge-pipeline targets`"
        head = bytes(elf[: _ELF.size])
        if len(head) < _ELF.size or head[:4] != b"\x7fELF":
            raise ArtifactError(where, "an ELF shared object inside", "something else", fix)
        _, bits, order, version, kind, machine = _ELF.unpack(head)
        found = ELF_MACHINES.get(machine, f"machine {machine}")
        if (32 * bits, order, version, kind, found) != (self.bits, 1, 1, _ET_DYN, self.arch):
            raise ArtifactError(
                where,
                f"a {self.bits}-bit little-endian ELF shared object for {self.arch} inside",
                f"one made for {found}, {32 * bits}-bit, byte order {order}, ELF type {kind}",
                fix,
            )


def ask_for_tiles(*, where: str) -> None:
    """Ask Linux for AMX's tile registers, for this process and its threads: without, their use ends the process.

    Raises ArtifactError where the system has none to give.
    """
    try:
        refused = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA)
        reason = os.strerror(ctypes.get_errno())
    except (OSError, AttributeError) as error:
        refused, reason = 1, str(error)
    if refused:
        raise ArtifactError(
            where,
            "a system that lets processes use AMX's tiles, which the library was compiled for (Linux 5.16)",
            reason,
            "compile the model with compile.amx=false",
        )


def _cpu_flags() -> frozenset[str] | None:
    """Return the flags that every core has, in the words of Linux; None where nobody says."""
    if not CPUINFO.exists():
        return None
    lines = (line.partition(":") for line in CPUINFO.read_text("utf-8", "replace").splitlines())
    cores = [frozenset(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")]
    return frozenset.intersection(*cores) if cores else None
