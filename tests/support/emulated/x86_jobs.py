#!/usr/bin/python3.11
"""Process 1 of the emulated machine: run a library for each job that appears on the second disk."""

import ctypes
import signal
import struct
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path += ["/site", "/source"]

from tests.support.emulated import jobs

SECTOR = 512
HEADER = struct.Struct("<QQ")  # number of the job, bytes from the next sector on


def mount(kind: str, folder: str) -> None:
    """Mount a file system of the kernel's."""
    Path(folder).mkdir(exist_ok=True)
    if ctypes.CDLL(None).mount(kind.encode(), folder.encode(), kind.encode(), 0, None):
        raise OSError(f"cannot mount {folder}")


def sectors(first: int, count: int) -> bytes:
    """Return sectors of the second disk."""
    buffer = ctypes.create_string_buffer(count * SECTOR)
    ports.read_sectors(first, count, buffer)
    return buffer.raw


def waited() -> Iterator[bytes]:
    """Yield jobs as they come: their numbers differ."""
    last = 0
    while True:
        number, length = HEADER.unpack_from(sectors(0, 1))
        if number != last:
            last = number
            yield sectors(1, -(-length // SECTOR))[:length]


def write(message: bytes) -> None:
    """Write to the host."""
    ports.write_host(message, ctypes.c_uint64(len(message)))


mount("proc", "/proc")
mount("devtmpfs", "/dev")
mount("tmpfs", "/tmp")
ports = ctypes.CDLL("/ports.so")
ports.instructions.restype = ctypes.c_uint64
if ports.open_ports():
    raise OSError("no access to the ports")
try:
    jobs.serve(waited(), write, Path("/proc/cpuinfo").read_text(), ports.instructions)
except Exception:  # noqa: BLE001 (nobody else would tell)
    write(jobs.framed("failed", traceback.format_exc()))
    signal.pause()
