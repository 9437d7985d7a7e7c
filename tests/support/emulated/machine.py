"""An emulated machine, as its host sees it: started once, it runs libraries with the Engine of this source tree."""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forge_pipeline.target.host import parse_cpuinfo
from tests.support.emulated.jobs import MARK

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "forge-pipeline"
JOB_SECONDS = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outputs in order of each run, and executed instructions where the machine counts them."""

    outputs: list[list[Any]]
    instructions: list[int]


class Machine(ABC):
    """A process that emulates a machine on which `jobs.serve` runs; it answers on its standard output."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self._process, self._buffer = process, b""
        kind, *rest = self._answer(seconds)
        if kind != "ready":
            raise RuntimeError(f"the emulated machine did not start: {kind} {rest}")
        self.flags = parse_cpuinfo(rest[0])[1]

    def run(self, library: bytes, *runs: tuple[tuple[Any, ...], dict[str, Any]]) -> Result:
        """Call an engine of ``library`` with the arguments of each run; raise the ForgeError with which it refuses."""
        self._submit(pickle.dumps((library, list(runs))))
        kind, *rest = self._answer(JOB_SECONDS)
        if kind == "refused":
            raise rest[0]
        if kind != "done":
            raise RuntimeError(rest[0])
        return Result(outputs=rest[0], instructions=rest[1])

    def close(self) -> None:
        """End the machine."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    @abstractmethod
    def _submit(self, job: bytes) -> None:
        """Hand over a job."""

    @abstractmethod
    def _last_words(self) -> str:
        """Return what the machine said elsewhere, for whoever asks why it is silent."""

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _answer(self, seconds: float) -> tuple[Any, ...]:
        until = time.monotonic() + seconds
        while True:
            found = self._buffer.find(MARK)
            start = found + len(MARK) + 8
            if found >= 0 and len(self._buffer) >= start:
                (length,) = struct.unpack_from("<Q", self._buffer, start - 8)
                if len(self._buffer) >= start + length:
                    body, self._buffer = self._buffer[start : start + length], self._buffer[start + length :]
                    message: tuple[Any, ...] = pickle.loads(body)
                    return message
            ready, _, _ = select.select([self._output], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._output.fileno(), 1 << 20) if ready else b""
            if not more:
                raise RuntimeError(f"the emulated machine is silent; it last said:\n{self._last_words()[-2000:]}")
            self._buffer += more
