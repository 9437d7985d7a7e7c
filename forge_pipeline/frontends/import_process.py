"""Runs an importer in a process of its own, so that a crash, a loop or a bomb costs an error message and no more."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import import_worker
from forge_pipeline.frontends.contract import Declared, Limits
from forge_pipeline.locate import PACKAGE

_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
_SETTINGS: Final = {
    "PYTHONHASHSEED": "0",  # exporters walk sets; the same file must give the same bytes
    "PYTHONWARNINGS": "ignore",
    "KERAS_BACKEND": "torch",
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # torch.load falls back to pickle by itself in places
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "LANG": "C.UTF-8",
}
_SHOWN: Final = 65536  # bytes of standard error that are looked at


class Folder:
    """A temporary folder that goes when nobody holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="forge-import-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The folder that holds the model, and the importer's notes."""

    folder: Folder
    notes: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.folder.path / import_worker.MODEL


def import_apart(module: str, path: Path, inputs: tuple[Declared, ...], limits: Limits) -> Answer:
    """Let ``module`` convert ``path`` in a child process. Raises what it refuses, and ModelError where it dies.

    Its current folder is a temporary one that is removed in every case; it has no network and none of this process's
    environment but the search paths.
    """
    folder = Folder()
    try:
        request = {
            "module": module,
            "path": str(path.absolute()),
            "inputs": [dataclasses.asdict(item) for item in inputs],
            "limits": dataclasses.asdict(limits),
        }
        status, said = _run(json.dumps(request).encode(), str(folder.path), limits.seconds)
        _check(path, status, said, folder.path, limits)
        notes = json.loads((folder.path / import_worker.NOTES).read_text())
    except BaseException:
        folder.remove()
        raise
    return Answer(folder=folder, notes=notes)


def _run(request: bytes, folder: str, seconds: int) -> tuple[int | None, str]:
    """Return the exit status (None: it took too long), and the end of what it said."""
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-P", "-m", import_worker.__name__]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
            cwd=folder, env=_environment(folder), start_new_session=True,
        )  # fmt: skip
        status: int | None = None
        try:
            child.communicate(request, timeout=seconds)
            status = child.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(child)
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SHOWN))
        return status, said.read().decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave none of its processes behind, whatever ended the wait."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _environment(folder: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    places = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | _SETTINGS | {"PYTHONPATH": os.pathsep.join(places), "HOME": folder, "TMPDIR": folder}


def _check(path: Path, status: int | None, said: str, folder: Path, limits: Limits) -> None:
    if status != 0:
        raise _failure(path, status, said, folder, limits)


def _failure(path: Path, status: int | None, said: str, folder: Path, limits: Limits) -> ModelError:
    if status == import_worker.REFUSED:
        return ModelError(*json.loads((folder / import_worker.REFUSAL).read_text()))
    if status == import_worker.FAILED:
        return ModelError(
            where=str(path),
            expected="a model that its framework can load and export",
            found=_printable(json.loads((folder / import_worker.REFUSAL).read_text())),
            fix="the framework's own message says why; where its exporter falls short, convert the model yourself",
        )
    if status is None or status == -signal.SIGXCPU:
        return ModelError(
            where=str(path),
            expected=f"a model that is imported within {limits.seconds} seconds",
            found="an importer that was still running",
            fix="a hostile file can loop for ever; if this one is only large, raise load.import_seconds",
        )
    if status == import_worker.OUT_OF_MEMORY or (status == -signal.SIGABRT and import_worker.is_memory(said)):
        return ModelError(
            where=str(path),
            expected=f"a model that is imported within {limits.memory >> 20} MiB of memory",
            found="an importer that asked for more",
            fix="a hostile file can ask for any amount; if this one is only large, raise load.import_memory",
        )
    died = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = [line.strip() for line in said.splitlines() if line.strip()]
    return ModelError(
        where=str(path),
        expected="a model that its framework can load",
        found=f"an importer that died ({died}): {_printable(last[-1] if last else 'without a word')[:300]}",
        fix="the file is damaged or hostile: export it again; SIGKILL can mean that the machine is out of memory",
    )


def _printable(text: str) -> str:
    """Keep one line of printable text: the message quotes names, and names are a stranger's."""
    plain = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain)[:1000]
