"""An emulated 64-bit ARM: forge-run, the native runtime, in QEMU's user mode. It needs no C library of that machine."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.errors import DataError
from tests.support.emulated.machine import Result
from tests.support.native import Runner, built

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
SECONDS = 1200


class Emulator:
    """A CPU of a model that QEMU knows."""

    def __init__(self, cpu: str) -> None:
        if QEMU is None:
            pytest.skip("qemu-aarch64 is not installed: apt-get install qemu-user")
        self._runner = Runner(built("aarch64") / "forge-run", (QEMU, "-cpu", cpu))

    def run(self, library: bytes, *runs: tuple[tuple[Any, ...], dict[str, Any]]) -> Result:
        """Run ``library`` with the arguments of each run. Raises DataError where it refuses them.

        Skips the test where the CPU lacks what the library was compiled for.
        """
        with tempfile.TemporaryDirectory(prefix="forge-emulated-") as folder:
            path = Path(folder) / "model_library.so"
            path.write_bytes(library)
            return Result(outputs=[self._outputs(path, args, named) for args, named in runs], instructions=[])

    def close(self) -> None:
        """Nothing is left running."""

    def _outputs(self, path: Path, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        folder = path.parent
        words = []
        for name, array in [*enumerate(args), *named.items()]:
            file = folder / f"in{len(words)}.npy"
            np.save(file, array)
            words.append(str(file) if isinstance(name, int) else f"{name}={file}")
        done = self._runner.start(path, *words, "--output", folder, seconds=SECONDS)
        if done.returncode:
            if lacking := re.search("a CPU without .*", done.stderr):
                pytest.skip(f"the emulated machine is {lacking[0]}")
            raise DataError("forge-run", "outputs", done.stderr, "give other inputs")
        return [np.load(folder / f"out{index}.npy") for index in range(len(list(folder.glob("out*.npy"))))]
