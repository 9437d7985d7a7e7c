"""Where kernels are kept from build to build, and how the compiler's process reaches it: that has no store."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Protocol


class Shelf(Protocol):
    """Keeps kernels by the digests of what they are made of."""

    def take(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of them that are there."""

    def keep(self, made: Mapping[str, bytes]) -> None:
        """Put kernels there."""


class Lent:
    """The compiler's end: a shelf that another process has."""

    def __init__(self, descriptor: int) -> None:
        self._line = Connection(descriptor)

    def take(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of them that are there."""
        self._line.send_bytes(pickle.dumps(list(digests)))
        taken: dict[str, bytes] = pickle.loads(self._line.recv_bytes())  # noqa: S301 - written by our own parent
        return taken

    def keep(self, made: Mapping[str, bytes]) -> None:
        """Put kernels there."""
        self._line.send_bytes(pickle.dumps(dict(made)))


@contextmanager
def lent(shelf: Shelf | None) -> Iterator[int | None]:
    """Serve ``shelf`` to a child that inherits the descriptor, for as long as this is open; None without one.

    What the shelf raises is raised here at the end: the child goes on without it.
    """
    if shelf is None:
        yield None
        return
    ours, theirs = socket.socketpair()
    failures: list[Exception] = []
    server = Thread(target=_serve, args=(shelf, Connection(ours.detach()), failures), name="shelf", daemon=True)
    server.start()
    try:
        yield theirs.fileno()
    finally:
        theirs.shutdown(socket.SHUT_RDWR)  # whoever else holds this end
        theirs.close()
        server.join()
    if failures:
        raise failures[0]


def _serve(shelf: Shelf, line: Connection, failures: list[Exception]) -> None:
    """Answer until the other end is closed."""
    with line, suppress(EOFError, ConnectionError):
        while True:
            asked = pickle.loads(line.recv_bytes())  # noqa: S301 - written by our own child
            taken: Mapping[str, bytes] = {}
            try:
                if isinstance(asked, dict):
                    shelf.keep(asked)
                    continue
                taken = shelf.take(asked)
            except Exception as error:  # noqa: BLE001 - whatever it is, the child waits for an answer
                failures.append(error)
            line.send_bytes(pickle.dumps(dict(taken)))
