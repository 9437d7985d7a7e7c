"""Inside an emulated machine: run libraries that the host hands over. How jobs come and go is the machine's affair."""

import os
import pickle
import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any

MARK = b"\0FORGE\0\0"
"""In front of a message to the host, then its length: whoever else writes there is not mistaken for one."""


def serve(
    jobs: Iterator[bytes],
    write: Callable[[bytes], None],
    cpuinfo: str,
    instructions: Callable[[], int] | None = None,
) -> None:
    """Answer ``jobs``; a child runs each, so that one that crashes ends nothing else.

    ``instructions`` counts what the machine has executed so far, where it can tell.
    """
    # Once for all children: each would take seconds.
    from forge_runtime import engine, library

    library.libforge()

    write(framed("ready", cpuinfo))
    for job in jobs:
        child = os.fork()
        if child == 0:
            write(framed(*_answer(engine.Engine, job, instructions)))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            write(framed("failed", f"the process that ran the library ended with {status}"))


def framed(*message: object) -> bytes:
    """Return a message to the host as it goes over the line."""
    body = pickle.dumps(message)
    return MARK + struct.pack("<Q", len(body)) + body


def _answer(make: Callable[..., Any], job: bytes, instructions: Callable[[], int] | None) -> tuple[Any, ...]:
    from forge_runtime.errors import ForgeError

    try:
        library, runs = pickle.loads(job)
        engine = make(library, threads=1)
        results, counts = [], []
        for args, named in runs:
            start = instructions() if instructions else 0
            results.append(engine(*args, **named))
            if instructions:
                counts.append(instructions() - start)
    except ForgeError as refusal:
        return "refused", refusal
    except Exception:  # noqa: BLE001 (the host raises it)
        return "failed", traceback.format_exc()
    return "done", results, counts
