"""An emulated 64-bit ARM: one process of QEMU, in whose user mode a Python runs libraries that are handed to it."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.support.emulated.machine import CACHE, Machine
from tests.support.paths import ROOT, SUPPORT

EMULATED = Path(os.environ.get("FORGE_AARCH64", CACHE / "aarch64"))
START_SECONDS = 300


class Emulator(Machine):
    """A running process on a CPU of a model that QEMU knows; its C library is glibc, whatever a target's is."""

    def __init__(self, cpu: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forge-emulated-")
        folder, root = Path(self._folder.name), EMULATED / "root"
        (folder / "libraries").mkdir()
        for name in ("libc", "libm"):  # what Android calls them
            (folder / f"libraries/{name}.so").symlink_to(root / "lib/aarch64-linux-gnu" / f"{name}.so.6")
        self._messages = folder / "messages"
        with self._messages.open("wb") as messages:
            process = subprocess.Popen(
                [root / "usr/bin/qemu-aarch64-static", "-cpu", cpu, root / "usr/bin/python3.11",
                 SUPPORT / "emulated/aarch64_jobs.py", folder / "cpuinfo"],
                env={
                    "QEMU_LD_PREFIX": str(root),
                    "QEMU_SET_ENV": f"LD_LIBRARY_PATH={folder / 'libraries'}",
                    "PYTHONHOME": str(root / "usr"),
                    "PYTHONPATH": f"{EMULATED / 'site'}:{ROOT}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "OPENBLAS_NUM_THREADS": "1",  # a child inherits none but the thread that makes it
                },
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages,
            )  # fmt: skip
        super().__init__(process, START_SECONDS)

    def close(self) -> None:
        """End the process."""
        super().close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()

    def _submit(self, job: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<Q", len(job)) + job)
        self._process.stdin.flush()

    def _last_words(self) -> str:
        return self._messages.read_text("utf-8", "replace")
