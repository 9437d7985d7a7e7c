#!/usr/bin/python3.11
"""Process 1 of the emulated machine: run a library for each job that appears on the second disk."""

import ctypes
import os
import pickle
import struct
import sys
import traceback
from pathlib import Path

SECTOR = 512
MARK = b"\0FORGE\0\0"
HEADER = struct.Struct("<QQ")  # number of the job, bytes from the next sector on
sys.path += ["/site", "/source"]


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


def send(*message: object) -> None:
    """Write a message to the host."""
    body = pickle.dumps(message)
    frame = MARK + struct.pack("<Q", len(body)) + body
    ports.write_host(frame, ctypes.c_uint64(len(frame)))


def run(library: bytes, runs: list[tuple[tuple[object, ...], dict[str, object]]]) -> None:
    """Send outputs, and how many instructions each run took."""
    from forge_pipeline.errors import ForgeError
    from forge_pipeline.runtime.engine import Engine

    try:
        engine = Engine(library, threads=1)
        results, counts = [], []
        for args, named in runs:
            start = ports.instructions()
            results.append(engine(*args, **named))
            counts.append(ports.instructions() - start)
        send("done", results, counts)
    except ForgeError as refusal:
        send("refused", str(refusal))
    except Exception:  # noqa: BLE001 (the host raises it)
        send("failed", traceback.format_exc())


def main() -> None:
    """Wait for jobs; a child runs each, so that one that crashes ends nothing else."""
    # Once for all children: each would take seconds.
    from forge_pipeline.runtime import machine

    machine._runtime()

    send("ready", Path("/proc/cpuinfo").read_text())
    last = 0
    while True:
        number, length = HEADER.unpack_from(sectors(0, 1))
        if number == last:
            continue
        last = number
        child = os.fork()
        if child == 0:
            run(*pickle.loads(sectors(1, -(-length // SECTOR))[:length]))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            send("failed", f"the process that ran the library ended with {status}")


mount("proc", "/proc")
mount("devtmpfs", "/dev")
mount("tmpfs", "/tmp")
ports = ctypes.CDLL("/ports.so")
ports.instructions.restype = ctypes.c_uint64
if ports.open_ports():
    raise OSError("no access to the ports")
try:
    main()
except Exception:  # noqa: BLE001 (nobody else would tell)
    send("failed", traceback.format_exc())
    while True:
        os.wait()
