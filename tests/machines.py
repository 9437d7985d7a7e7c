"""Where tests run what they compiled: on this machine, or on an emulated one, as FORGE_TEST_TARGET says.

FORGE_TEST_TARGET is a target such as intel/sapphire-rapids, or that with +amx: tests of integer code then compile for
it, and what this CPU cannot run, an emulated one does (tests/x86_emulated).
"""

from __future__ import annotations

import atexit
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forge_pipeline.runtime.engine import Engine
from forge_pipeline.target import Target
from forge_pipeline.target.host import why_not_here

if TYPE_CHECKING:
    from tests.x86_emulated.machine import Emulator

CHOSEN, _, WITH = os.environ.get("FORGE_TEST_TARGET", "").partition("+")
AMX = WITH == "amx"
CPUS = {"intel/alder-lake": "arrow_lake"}
"""Models of CPUs that Bochs knows, by target; sapphire_rapids runs all others for x86."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A library that an emulated machine runs: called as an Engine is."""

    machine: Emulator
    library: bytes

    def __call__(self, *args: Any, **named: Any) -> list[Any]:
        return self.machine.run(self.library, (args, named)).outputs[0]


@functools.cache
def emulator(cpu: str) -> Emulator:
    """Start an emulated machine, which ends with this process."""
    from tests.x86_emulated.machine import Emulator

    machine = Emulator(cpu)
    atexit.register(machine.close)
    return machine


def emulated(target: Target) -> Emulator:
    """Return a machine that can run code for ``target``; skips the test where there is none."""
    machine = emulator(CPUS.get(target.tag, "sapphire_rapids"))
    missing = set(target.cpu_flags) - machine.flags
    if missing:
        pytest.skip(f"the emulated machine cannot run {target.tag}: it lacks {', '.join(sorted(missing))}")
    return machine


def load(library: bytes, target: Target, threads: int = 1) -> Any:
    """Return the library of a model for ``target`` as a function; skips the test where nothing can run it.

    An emulated machine has one CPU.
    """
    reason = why_not_here(target)
    if reason is None:
        return Engine(library, threads=threads)
    if not CHOSEN or target.arch != "x86_64":
        pytest.skip(f"{target.tag} does not run here: {reason}")
    return Remote(machine=emulated(target), library=library)
