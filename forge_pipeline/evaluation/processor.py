"""On which processor a latency was measured."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
NAMES = ("model name", "Model", "cpu model", "uarch")
"""Where Linux writes it, by architecture: x86, boards with a device tree, others, RISC-V."""


def cpu_name() -> str:
    """Return `x86_64, AMD EPYC 7B13`: the processor's architecture and, where the system tells it, its name."""
    arch = platform.machine()
    fields: dict[str, str] = {}
    if CPUINFO.exists():
        for line in CPUINFO.read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), " ".join(value.split()))
    name = next((fields[key] for key in NAMES if fields.get(key)), "")
    return f"{arch}, {name}" if name else arch
