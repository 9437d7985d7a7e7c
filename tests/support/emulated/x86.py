"""An emulated x86: started once, it runs libraries that are handed to it, with the Engine of this source tree.

Bochs interprets about 50 million instructions a second. Its first disk holds Linux and a root file system that
`setup.sh` made, its second one the job; it answers over a port whose bytes Bochs writes to its standard output. An
idle guest would keep a core busy, so its process is stopped between two jobs.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.emulated.bochs import (
    ARGUMENTS,
    CYLINDER,
    EMULATED,
    FILE,
    FOLDER,
    LINK,
    PROGRAM,
    SECTOR,
    entry,
    write_machine,
)
from tests.support.emulated.machine import Machine, Result
from tests.support.native import built
from tests.support.paths import ROOT, SUPPORT

BOOT_SECONDS = 900
JOBS = SUPPORT / "emulated/jobs.py"
MAILBOX_CYLINDERS = 512
HEADER = struct.Struct("<QQ")


class Emulator(Machine):
    """A running machine with one CPU of a model that Bochs knows."""

    def __init__(self, cpu: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forge-emulated-")
        folder = Path(self._folder.name)
        self._mailbox, self._jobs = folder / "mailbox", 0
        with self._mailbox.open("wb") as file:
            file.truncate(MAILBOX_CYLINDERS * CYLINDER)
        write_machine(folder, cpu, _archive(), f"path=mailbox, cylinders={MAILBOX_CYLINDERS}")
        with (folder / "messages").open("wb") as messages:
            process = subprocess.Popen(
                [PROGRAM, *ARGUMENTS],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages,
            )  # fmt: skip
        super().__init__(process, BOOT_SECONDS)
        process.send_signal(signal.SIGSTOP)

    def run(self, library: bytes, *runs: tuple[tuple[Any, ...], dict[str, Any]]) -> Result:
        """Call an engine of ``library`` with the arguments of each run."""
        try:
            return super().run(library, *runs)
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the machine."""
        super().close()
        self._folder.cleanup()

    def _submit(self, job: bytes) -> None:
        with self._mailbox.open("r+b") as file:
            file.seek(SECTOR)
            file.write(job)
            file.flush()
            self._jobs += 1
            file.seek(0)
            file.write(HEADER.pack(self._jobs, len(job)))
        self._process.send_signal(signal.SIGCONT)

    def _last_words(self) -> str:
        serial = Path(self._folder.name) / "serial"
        return serial.read_text("utf-8", "replace") if serial.exists() else "(nothing)"


def _archive() -> Iterator[bytes]:
    """Yield a root file system: what setup.sh made, and this source tree."""
    root = EMULATED / "root"
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            yield entry(name, LINK, str(path.readlink()).encode())
        else:
            yield entry(name, FOLDER) if path.is_dir() else entry(name, FILE, path.read_bytes())
    yield entry("source", FOLDER)
    package = ROOT / "forge_runtime"
    for path in [package, *sorted(package.rglob("*")), SUPPORT.parent, SUPPORT, JOBS.parent, JOBS]:
        name = f"source/{path.relative_to(ROOT)}"
        if path.is_dir():
            yield entry(name, FOLDER)
        elif path.suffix == ".py":
            yield entry(name, FILE, path.read_bytes())
    yield entry("source/forge_runtime/libforge.so", FILE, (built("x86_64") / "libforge.so").read_bytes())
    yield entry("init", FILE, (SUPPORT / "emulated/x86_jobs.py").read_bytes())
