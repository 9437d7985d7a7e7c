"""Where tests run what they compiled: on this machine, or on an emulated one, as FORGE_TEST_TARGET says.

FORGE_TEST_TARGET is a target such as raspberry-pi/5, intel/sapphire-rapids, or that with +amx: tests of integer code
then compile for it, and what this CPU cannot run, an emulated one does (tests/aarch64, tests/x86_emulated).
"""

from __future__ import annotations

import atexit
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forge_pipeline.target import Target
from forge_pipeline.target.description import why_not_here
from forge_runtime.engine import Engine

if TYPE_CHECKING:
    from tests.support.emulated.aarch64 import Emulator
    from tests.support.emulated.x86 import Emulator as Bochs

    Emulated = Emulator | Bochs

CHOSEN, _, WITH = os.environ.get("FORGE_TEST_TARGET", "").partition("+")
AMX = WITH == "amx"
X86_CPUS = {"intel/alder-lake": "arrow_lake"}
"""Models of CPUs that Bochs knows, by target; sapphire_rapids runs all others for x86."""
ARM_CPUS = {
    "generic": "cortex-a53",
    "cortex-a53": "cortex-a53",
    "cortex-a55": "cortex-a76",
    "cortex-a72": "cortex-a72",
    "cortex-a76": "cortex-a76",
    "neoverse-n1": "neoverse-n1",
}
"""Models of CPUs that QEMU knows, by LLVM's word for a target's, which have no more than that; max runs all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A library that an emulated machine runs: called as an Engine is."""

    machine: Emulated
    library: bytes

    def __call__(self, *args: Any, **named: Any) -> list[Any]:
        return self.machine.run(self.library, (args, named)).outputs[0]


@functools.cache
def emulator(arch: str, cpu: str) -> Emulated:
    """Start an emulated machine, which ends with this process."""
    from tests.support.emulated import aarch64, x86

    machine: Emulated = {"aarch64": aarch64.Emulator, "x86_64": x86.Emulator}[arch](cpu)
    atexit.register(machine.close)
    return machine


def emulated(target: Target) -> Emulated:
    """Return a machine that can run code for ``target``; skips the test where there is none."""
    is_arm = target.arch == "aarch64"
    cpu = ARM_CPUS.get(target.cpu, "max") if is_arm else X86_CPUS.get(target.tag, "sapphire_rapids")
    machine = emulator(target.arch, cpu)
    missing = set() if is_arm else set(target.cpu_flags) - machine.flags  # forge-run says so itself
    if missing:
        pytest.skip(f"the emulated machine cannot run {target.tag}: it lacks {', '.join(sorted(missing))}")
    return machine


def expect(target: Target) -> None:
    """Skip the test where a target of another architecture was chosen: it belongs to a session without."""
    if CHOSEN and target.arch != Target.from_tag(CHOSEN).arch:
        pytest.skip(f"{target.tag} is none of {CHOSEN}'s architecture")


def load(library: bytes, target: Target, threads: int = 1) -> Any:
    """Return the library of a model for ``target`` as a function; skips the test where nothing can run it.

    An emulated machine has one CPU.
    """
    expect(target)
    reason = why_not_here(target)
    if reason is None:
        return Engine(library, threads=threads)
    if not CHOSEN:
        pytest.skip(f"{target.tag} does not run here: {reason}")
    return Remote(machine=emulated(target), library=library)
