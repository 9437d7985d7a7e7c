"""How other programs are started: with what of our environment, and so that nothing of them is left behind.

The environment is a list of what is let through, so that passwords, tokens and credentials reach no compiler, no
importer and no linker. Nothing that lies in the current folder is executed: Python looks for modules neither there
nor beside a script, and the empty parts of search paths, which mean that folder, are left out.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge_pipeline import scratch

_KEPT: Final = frozenset(
    (
        *("HOME", "TMPDIR", "LANG", "TZ", "VIRTUAL_ENV"),
        *("PYTHONHOME", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONNOUSERSITE"),
        *("PYTHONUTF8", "PYTHONWARNINGS", "PYTHONMALLOC", "PYTHONFAULTHANDLER"),
        *("TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_BACKTRACE", "TVM_LOG_DEBUG"),
        *("NVCC_CCBIN", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    )
)
_FAMILIES: Final = ("LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_", "GLIBC_", "MALLOC_")
_PATHS: Final = ("PATH", "LD_LIBRARY_PATH")
_SET: Final = {
    "PYTHONSAFEPATH": "1",  # for what a child starts in its turn
    "ORT_DISABLE_TELEMETRY": "1",
}
_SECRETS: Final = (
    *("FORGE_PASSWORD", "FORGE_SIGNING_KEY", "FORGE_PKCS11_PIN"),
    *("FORGE_STORE_REMOTE", "FORGE_STORE_REMOTE_OPTIONS"),
)
_FOLDER: Final = "forge-process-"
_SHOWN: Final = 65536  # bytes of standard error that are looked at


def environment() -> dict[str, str]:
    """Return the environment of every program that is started here."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_FAMILIES)}
    paths = {name: places for name in _PATHS if (places := _places(os.environ.get(name, "")))}
    package = str(Path(__file__).parent.parent)
    modules = os.pathsep.join(filter(None, [package, _places(os.environ.get("PYTHONPATH", ""))]))
    return kept | paths | _SET | {"PYTHONPATH": modules}


def environment_with_credentials() -> dict[str, str]:
    """Return the environment of what talks to a remote store: ours, credentials included, less our own secrets."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS} | environment()


def _places(path: str) -> str:
    return os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep) if part)


def python(*arguments: str) -> list[str]:
    """Return the command line of a Python that looks for no modules in its current folder or beside its script."""
    return [sys.executable, "-P", *arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The exit status (None: it took too long), the standard output, and the end of what was said on standard error."""

    status: int | None
    answer: bytes
    said: str

    @property
    def how(self) -> str:
        """Name the way it ended."""
        if self.status is None:
            return "no answer in time"
        return signal.Signals(-self.status).name if self.status < 0 else f"exit status {self.status}"


def run_apart(
    command: Sequence[str],
    request: bytes,
    *,
    seconds: float | None = None,
    folder: str | None = None,
    settings: Mapping[str, str] | None = None,
    files: Sequence[int] = (),
    answers: bool = True,
) -> Ended:
    """Give ``request`` to a process of its own, in ``folder``, with the open ``files``, and return how it ended.

    Whatever ends the wait, none of its processes and none of its temporary files is left.
    """
    with _folder() as own, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if answers else subprocess.DEVNULL, stderr=said,
            cwd=folder, env=environment() | {"TMPDIR": own} | dict(settings or {}), pass_fds=files,
            start_new_session=True,
        )  # fmt: skip
        status, answer = None, b""
        try:
            answer = child.communicate(request, timeout=seconds)[0] or b""
            status = child.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(child)
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SHOWN))
        return Ended(status=status, answer=answer, said=said.read().decode("utf-8", "replace"))


@contextmanager
def _folder() -> Iterator[str]:
    within = Path(tempfile.gettempdir())
    _sweep(within)
    path, lock = scratch.held(_FOLDER, within)
    try:
        yield str(path)
    finally:
        try:
            os.rmdir(path)  # noqa: PTH106  needs no open file, where there may be none left
        except OSError:
            shutil.rmtree(path)
        finally:
            os.close(lock)


@functools.cache
def _sweep(within: Path) -> None:
    """Remove what processes that were killed left, once."""
    scratch.sweep(_FOLDER, within)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave none of its processes behind."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in filter(None, (child.stdin, child.stdout)):
        with suppress(BrokenPipeError):  # part of a request that nobody reads any more
            stream.close()
