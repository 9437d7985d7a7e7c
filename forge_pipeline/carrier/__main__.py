"""Answers its parent, one request at a time.

Its argument is the descriptor of a connection. The parent sends JSON with a URL and options, which is answered by what
is wrong with it, or nothing; then requests as JSON. The answer to each are pieces (``d`` and bytes of a file or of a
list, ``p`` and the number of bytes that were sent), and an end: ``=`` and JSON, where ``end`` is `done`, `no` (to a
question), `missing`, `odd` (no regular file, or too long), `cannot` (the remote is of no such kind), or `failed`, with
``found``, and ``again`` where another attempt may help.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from forge_pipeline.carrier.connect import connect, what_is_wrong
from forge_pipeline.carrier.files import CHUNK, Files, OddError

MEMORY = 2 << 30  # enough for uploads in parallel parts of 50 MB, and an end to an answer that has none
LONGEST = 500  # characters of an error's text
_LASTING = (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError, TypeError, ValueError)
_PASSING = (408, 425, 429)  # of the answers that blame who asked, those that another attempt may change


def answer(files: Files, request: dict[str, Any], data: bytes, parent: Connection) -> str:
    """Do what is asked for, with the ``data`` that came along, and return how it ended."""

    def moved(count: int) -> None:
        parent.send_bytes(b"p%d" % count)

    def pieces(data: bytes) -> None:
        parent.send_bytes(b"d" + data)

    name = request.get("name", "")
    match request["do"]:
        case "look":
            files.look()
        case "read":
            files.read(name, request["limit"], pieces)
        case "has":
            return "done" if files.size(name) is not None else "no"
        case "write":
            files.write(data, name, moved)
        case "send" if not Path(request["source"]).exists():  # damaged and moved away since
            return "missing"
        case "send":
            if request["replace"] or files.size(name) != request["size"]:
                files.send(request["source"], name, moved)
        case "list":
            for entries in files.names(name):
                line = json.dumps(entries).encode() + b"\n"
                for start in range(0, len(line), CHUNK):
                    pieces(line[start : start + CHUNK])
        case "remove":
            files.remove(name)
        case "claim":
            return "done" if files.claim(name, data) else "no"
        case "release":
            files.release(name)
    return "done"


def serve(parent: Connection) -> None:
    """Answer requests until the parent has no more."""
    place = json.loads(parent.recv_bytes())
    parent.send_bytes(_end(wrong=what_is_wrong(place["url"])))
    files: Files | None = None
    while True:
        request = json.loads(parent.recv_bytes())
        data = parent.recv_bytes() if request.get("data") else b""
        found, again = "", False
        try:
            files = files or connect(place["url"], place["options"])  # not before: some back ends connect
            end = answer(files, request, data, parent)
        except FileNotFoundError as error:
            end, found = ("missing", "") if request["do"] == "read" else ("failed", _said(error))
        except (OddError, MemoryError):
            end = "odd" if request["do"] == "read" else "failed"
        except NotImplementedError as error:
            end, found = "cannot", _said(error)
        except Exception as error:  # noqa: BLE001 - a back end's errors have no common base
            end, found, again = "failed", _said(error), _again(error)
        parent.send_bytes(_end(end=end, found=found, again=again))


def _end(**values: Any) -> bytes:
    return b"=" + json.dumps(values).encode()


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]


def _again(error: Exception) -> bool:
    """Say whether another attempt may do better."""
    places = [(error, "status"), (error, "code"), (getattr(error, "response", None), "status_code")]
    codes = [getattr(holder, name, None) for holder, name in places]
    status = next((code for code in codes if isinstance(code, int)), 0)
    return not isinstance(error, _LASTING) and not (400 <= status < 500 and status not in _PASSING)


def _leave_with_parent(descriptor: int) -> None:
    """Wait until nobody is at the other end of the connection; then leave, within a second."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # nothing but its end
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of ``descriptor``."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # unwinds: no partial file stays
    Thread(target=_leave_with_parent, args=(descriptor,), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(Connection(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
