"""Stores that are closed again, what they said, real worker processes, and the one check that matters: all is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.store import Store
from forge_pipeline.store.actions import decode
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.remote import Remote
from tests.support.paths import SUPPORT
from tests.support.web import Web

KEY = digest_json("a key")
CONTENTS = {"model.onnx": bytes(range(256)) * 300, "report.json": b"{}", "empty": b""}

OpenStore = Callable[..., Store]
Worker = Callable[..., "subprocess.Popen[str]"]


@dataclass
class Bench:
    """Opens stores in one folder, and keeps what they told."""

    root: Path
    told: list[str] = field(default_factory=list)
    builds: int = 0
    _open: ExitStack = field(default_factory=ExitStack)

    def remote(self, url: str, *, width: int = 1, **terms: Any) -> Remote:
        return self._open.enter_context(closing(Remote(Terms(url=url, **terms), self.told.append, width=width)))

    def store(self, name: str = "store", url: str | None = None, **terms: Any) -> Store:
        remote = None if url is None else self.remote(url, **terms)
        return self._open.enter_context(Store(self.root / name, remote, on_damage=self.told.append))

    def close(self) -> None:
        self._open.close()

    def build(self) -> tuple[dict[str, bytes], dict[str, object]]:
        self.builds += 1
        return CONTENTS, {"builds": self.builds}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def key() -> str:
    return KEY


@pytest.fixture
def contents() -> dict[str, bytes]:
    return dict(CONTENTS)


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Start ``store_worker.py`` with arguments; whatever still runs at the end is killed."""
    with ExitStack() as running:

        def start(*arguments: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, str(SUPPORT / "store_worker.py"), *map(str, arguments)],
                stdout=subprocess.PIPE,
                text=True,
            )
            running.enter_context(process)
            running.callback(process.kill)
            return process

        yield start


@pytest.fixture
def assert_whole() -> Callable[[Path], None]:
    """Check every visible name of a store folder from outside, opening no store: names tell the truth about bytes."""

    def check(root: Path) -> None:
        for path in (root / "objects").glob("*/*"):
            assert digest_bytes(path.read_bytes()) == path.parent.name + path.name
        for path in (root / "actions" / "v1").glob("*/*"):
            action = decode(path.read_bytes(), path.parent.name + path.name)
            for name, digest in action.outputs.items():
                assert (root / "objects" / digest[:2] / digest[2:]).stat().st_size == action.sizes[name]

    return check


@pytest.fixture
def damage() -> Callable[..., None]:
    """Change a stored file in place, read-only or not, as a failing disk or a careless editor does."""

    def change(path: Path, data: bytes) -> None:
        path.chmod(0o644)
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    return change


@pytest.fixture
def web() -> Iterator[Web]:
    """Return a web server on this machine, sound as long as nobody gives it a fault."""
    with Web() as server:
        yield server
