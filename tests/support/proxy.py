"""A real TCP proxy on 127.0.0.1 that passes bytes on, until a test gives it a fault."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType

Fault = Callable[["Proxy", socket.socket], None]
PIECE = bytes(1 << 16)


class Proxy:
    """Stands between a client and the server at ``port``; ``fault`` is what happens to new connections instead."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.fault: Fault | None = None
        self.over = Event()
        self.answered = 0
        """Bytes of the server's answers that were passed on."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Proxy:
        Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            (self.fault or passing)(self, client)

    def through(self, client: socket.socket, limit: int | None, end: Callable[[Proxy, socket.socket], None]) -> None:
        """Pass on; after ``limit`` bytes of the server's answers in all, ``end`` is what follows."""
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            Thread(target=_pump, args=(client, server), daemon=True).start()
            while piece := server.recv(1 << 16):
                self.answered += len(piece)
                client.sendall(piece)
                if limit is not None and self.answered >= limit:
                    return end(self, client)
        return None


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def passing(proxy: Proxy, client: socket.socket) -> None:
    """Pass everything on."""
    proxy.through(client, None, reset)


def reset(proxy: Proxy, client: socket.socket) -> None:
    """Hang up without a word."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(proxy: Proxy, client: socket.socket) -> None:
    """Take what comes, and answer nothing."""
    Thread(target=_swallow, args=(client,), daemon=True).start()
    proxy.over.wait()


def _swallow(client: socket.socket) -> None:
    with suppress(OSError):
        while client.recv(1 << 16):
            pass


def endless(proxy: Proxy, client: socket.socket) -> None:
    """Answer without an end."""
    client.recv(1 << 16)
    client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while not proxy.over.is_set():
        client.sendall(PIECE)


def after(limit: int, end: Fault) -> Fault:
    """Pass on the first ``limit`` bytes of the server's answers in all; then ``end``."""
    return lambda proxy, client: proxy.through(client, limit, end)


def gone(proxy: Proxy, client: socket.socket) -> None:
    """Hang up, now and for whoever comes after."""
    proxy.fault = reset
    reset(proxy, client)


def status(code: int) -> Fault:
    """Answer every request of a web client with ``code``."""

    def fault(proxy: Proxy, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1 << 16)
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        left = int(length[1]) - len(head.partition(b"\r\n\r\n")[2]) if length else 0
        while left > 0:
            left -= len(client.recv(1 << 16))
        body = b"" if head.startswith(b"HEAD") else b"no"
        client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\nConnection: close\r\n\r\n%s" % (code, body))

    return fault
