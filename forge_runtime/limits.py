"""What a device lends to a file before it is known to be authentic."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from forge_runtime.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # as a container sees its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes that a library, and the derivation of its key, may take."""

    library: int
    derivation: int

    @classmethod
    def of(cls, library: int | None, derivation: int | None) -> Limits:
        """Return the limits that are given; None stands for what is free. Raises ConfigError."""
        for name, value in (("max_bytes", library), ("max_kdf_bytes", derivation)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(name, "a number of bytes", repr(value)[:40], "leave it out for what is free")
        free = available() if library is None or derivation is None else 0
        return cls(
            library=free if library is None else library,
            derivation=free if derivation is None else derivation,
        )


def available() -> int:
    """Return the bytes that machine and container have free without swapping; where nobody says, any number."""
    found = [sys.maxsize]
    try:
        lines = (line.partition(":") for line in MEMINFO.read_text().splitlines())
        found += [int(value.split()[0]) << 10 for name, _, value in lines if name == "MemAvailable"]
        most, used = ((GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found += [max(0, int(most) - int(used))] if most != "max" else []
    except (OSError, ValueError, IndexError):
        pass
    return min(found)
