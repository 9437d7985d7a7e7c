"""What the emulated process runs: a library for each job that arrives on its standard input."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from forge_pipeline.runtime import host
from tests.support.emulated.jobs import serve

CPUINFO = Path(sys.argv[1])

CAPABILITIES, MORE_CAPABILITIES = 16, 26
"""AT_HWCAP and AT_HWCAP2 of the auxiliary vector; bits and names are in Linux's arch/arm64, hwcap.h and cpuinfo.c."""
NAMES = {
    CAPABILITIES: (
        *("fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid"),
        *("asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512", "sve", "asimdfhm"),
    ),
    MORE_CAPABILITIES: (
        *("dcpodp", "sve2", "sveaes", "svepmull", "svebitperm", "svesha3", "svesm4", "flagm2", "frint", "svei8mm"),
        *("svef32mm", "svef64mm", "svebf16", "i8mm", "bf16"),
    ),
}


def described() -> str:
    """Return what /proc/cpuinfo would say on such a CPU: the emulator shows its host's."""
    capabilities = ctypes.CDLL(None).getauxval
    capabilities.argtypes, capabilities.restype = [ctypes.c_ulong], ctypes.c_ulong
    words = [name for kind, names in NAMES.items() for bit, name in enumerate(names) if capabilities(kind) >> bit & 1]
    return f"Features : {' '.join(words)}\n"


def main() -> None:
    """Answer on what was the standard output: nothing else writes there."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    CPUINFO.write_text(described())
    host.CPUINFO = CPUINFO

    def jobs() -> Iterator[bytes]:
        while length := sys.stdin.buffer.read(8):
            yield sys.stdin.buffer.read(*struct.unpack("<Q", length))

    def write(message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            rest = rest[answers.write(rest) :]

    serve(jobs(), write, CPUINFO.read_text())


if __name__ == "__main__":
    main()
