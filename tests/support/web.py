"""A real web server on 127.0.0.1 that keeps what is put there, and is as faulty as a test wants it."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType

Fault = Callable[["Handler", bytes], None]
PIECE = bytes(1 << 16)


class Web:
    """Files by path. ``faults`` holds what happens to a method in place of an answer; ``asked`` what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, Fault] = {}
        self.asked: list[tuple[str, str]] = []
        self.over = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"web": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/cache"

    def __enter__(self) -> Web:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def methods(self) -> list[str]:
        """Return the methods that were asked for, in their order."""
        return [method for method, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    """Answers GET, HEAD and PUT."""

    web: Web
    protocol_version = "HTTP/1.1"
    body = b""

    def handle_one_request(self) -> None:
        """Read one request; whoever asks may hang up at any time."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        self.web.asked.append((self.command, self.path))
        fault = self.web.faults.get(self.command)
        path = self.path.partition("?")[0]
        if fault is not None and (fault not in OF_FILES or path in self.web.files):
            fault(self, self.web.files.get(path, b""))
        elif self.command == "PUT":
            self.web.files[path] = self.received()
            self.say(201)
        elif path in self.web.files:
            self.say(200, self.web.files[path])
        else:
            self.say(404, b"none")

    def received(self) -> bytes:
        """Read the body of a request."""
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def say(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        """Send an answer that claims ``length`` bytes."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def stop(self) -> None:
        """Hang up."""
        self.close_connection = True


def status(code: int) -> Fault:
    """Answer everything with ``code``."""

    def fault(handler: Handler, body: bytes) -> None:
        if handler.command == "PUT":
            handler.received()
        handler.say(code, b"no")

    return fault


def silent(handler: Handler, body: bytes) -> None:
    """Answer nothing."""
    handler.web.over.wait()
    handler.stop()


def half(handler: Handler, body: bytes) -> None:
    """Send half of a file, then nothing."""
    handler.say(200, body[: len(body) // 2], len(body))
    silent(handler, body)


def cut(handler: Handler, body: bytes) -> None:
    """Send half of a file, and hang up."""
    handler.say(200, body[: len(body) // 2], len(body))
    handler.stop()


def trickling(handler: Handler, body: bytes) -> None:
    """Send a file a byte at a time."""
    handler.say(200, b"", len(body))
    for position in range(len(body)):
        handler.wfile.write(body[position : position + 1])
        if handler.web.over.wait(0.1):
            break
    handler.stop()


def endless(handler: Handler, body: bytes) -> None:
    """Send without an end."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    while not handler.web.over.is_set():
        handler.wfile.write(PIECE)
    handler.stop()


def bomb(handler: Handler, body: bytes) -> None:
    """Send little that is much when it is unpacked."""
    handler.say(200, gzip.compress(bytes(64 << 20)), Content_Encoding="gzip")


def loop(handler: Handler, body: bytes) -> None:
    """Send whoever asks to where they are."""
    if handler.command == "PUT":
        handler.received()
    handler.say(302, Location=handler.path)


def slow(seconds: float) -> Fault:
    """Answer late."""

    def fault(handler: Handler, body: bytes) -> None:
        time.sleep(seconds)
        handler.say(200 if body else 404, body)

    return fault


OF_FILES = (half, cut, trickling)  # what is missing is said to be, as ever
