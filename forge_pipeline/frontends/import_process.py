"""Runs an importer in a process of its own, so that a crash, a loop or a bomb costs an error message and no more."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import shutil
import signal
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forge_pipeline import children
from forge_pipeline.errors import ForgeError, ModelError
from forge_pipeline.frontends import import_worker
from forge_pipeline.frontends.contract import Declared, Limits
from forge_pipeline.limits import blamed, is_exhaustion, is_memory

_SETTINGS: Final = {
    "PYTHONHASHSEED": "0",  # exporters walk sets; the same file must give the same bytes
    "PYTHONWARNINGS": "ignore",
    "KERAS_BACKEND": "torch",
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # torch.load falls back to pickle by itself in places
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "LC_ALL": "C.UTF-8",
}


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


def import_apart(
    module: str, path: Path, inputs: tuple[Declared, ...], limits: Limits, **options: Mapping[str, int]
) -> Answer:
    """Let ``module`` convert ``path`` in a child process. Raises what it refuses, and ModelError where it dies.

    ``options`` are further arguments of its ``convert``.

    Its current folder is a temporary one that is removed in every case; it has no network, and of this process's
    environment what ``children`` lets through.
    """
    folder = Folder()
    try:
        request = {
            "module": module,
            "path": str(path.absolute()),
            "inputs": [dataclasses.asdict(item) for item in inputs],
            "limits": dataclasses.asdict(limits),
            "options": options,
        }
        child = children.run_apart(
            children.python("-m", import_worker.__name__), json.dumps(request).encode(), seconds=limits.seconds,
            folder=str(folder.path), settings=_SETTINGS | {"HOME": str(folder.path), "TMPDIR": str(folder.path)},
            answers=False,
        )  # fmt: skip
        _check(path, child, folder.path, limits)
        notes = json.loads((folder.path / import_worker.NOTES).read_text())
    except BaseException:
        folder.remove()
        raise
    return Answer(folder=folder, notes=notes)


def _check(path: Path, child: children.Ended, folder: Path, limits: Limits) -> None:
    if child.status != 0:
        raise _failure(path, child, folder, limits)


def _failure(path: Path, child: children.Ended, folder: Path, limits: Limits) -> ForgeError:
    status = child.status
    if status == import_worker.REFUSED:
        return ModelError(*json.loads((folder / import_worker.REFUSAL).read_text()))
    lines = [line.strip() for line in child.said.splitlines() if line.strip()]
    last = lines[-1] if lines else "without a word"
    if status == import_worker.FAILED:
        last = json.loads((folder / import_worker.REFUSAL).read_text())
    if status is not None and (status != import_worker.FAILED or is_exhaustion(last)):
        needs = {  # address space is reserved in amounts that are never used, by PyTorch too
            resource.RLIMIT_AS: 4 * limits.memory, resource.RLIMIT_DATA: limits.memory, resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_CPU: limits.seconds, resource.RLIMIT_FSIZE: limits.memory,
        }  # fmt: skip
        error = blamed(str(path), f"an importer that died ({child.how}): {_printable(last)[:300]}", needs)
        if error is not None:
            return error
    if status == import_worker.FAILED:
        return ModelError(
            where=str(path),
            expected="a model that its framework can load and export",
            found=_printable(last),
            fix="the framework's own message says why; where its exporter falls short, convert the model yourself",
        )
    if status is None or status == -signal.SIGXCPU:
        return ModelError(
            where=str(path),
            expected=f"a model that is imported within {limits.seconds} seconds",
            found="an importer that was still running",
            fix="a hostile file can loop for ever; if this one is only large, raise load.import_seconds",
        )
    if status == import_worker.OUT_OF_MEMORY or (status == -signal.SIGABRT and is_memory(child.said)):
        return ModelError(
            where=str(path),
            expected=f"a model that is imported within {limits.memory >> 20} MiB of memory",
            found="an importer that asked for more",
            fix="a hostile file can ask for any amount; if this one is only large, raise load.import_memory",
        )
    return ModelError(
        where=str(path),
        expected="a model that its framework can load",
        found=f"an importer that died ({child.how}): {_printable(last)[:300]}",
        fix="the file is damaged or hostile: export it again; SIGKILL can mean that the machine is out of memory",
    )


def _printable(text: str) -> str:
    """Keep one line of printable text, without colours: the message quotes names, and names are a stranger's."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain)[:1000]
