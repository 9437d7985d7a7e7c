"""Puts a finished build into the user's folder: all files complete, none left over from an earlier build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from forge_pipeline.crypto.signing import SUFFIX
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.cards.bom import BOM, bom_bytes
from forge_pipeline.pipeline.provenance import ENVELOPE, PROVENANCE, statement_bytes
from forge_pipeline.pipeline.runner import Output
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import PROGRAMS
from forge_pipeline.stages.contract import Slice
from forge_pipeline.store.locks import locked

MANIFEST = "manifest.json"
BUNDLE = "model.oms.json"  # what `sign --model-signing-key` writes
STAGING = ".delivery"  # in the folder, while it is delivered to
LOCK = ".delivering"  # held while a run works for the folder; gone afterwards


@contextmanager
def prepare(folder: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Make ``folder`` and see that it can be written, before any work; leave none behind when the work fails.

    Another process that delivers there is waited for, after a call of ``on_wait``. Raises ForgeError.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        with ExitStack() as held:
            with _refusing(f"out={folder}"):
                while not _lock(folder, held, on_wait):
                    pass
                TemporaryFile(dir=folder).close()
            yield
    except BaseException:
        with suppress(OSError):  # not empty: another run delivers there
            for part in made:
                part.rmdir()
        raise


def _lock(folder: Path, held: ExitStack, on_wait: Callable[[], None]) -> bool:
    """Make ``folder`` and lock it; false where the run that was waited for took it away with its failure."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held.enter_context(locked(folder / LOCK, on_wait=on_wait))
    except FileNotFoundError:
        return False
    return True


def deliver(
    outputs: Mapping[str, Output],
    parts: Mapping[str, Slice],
    folder: Path,
    *,
    sealed: bool,
    sign: Callable[[Path], object] | None = None,
) -> None:
    """Put the deliverables of a build into ``folder``, with its manifest, provenance and bill of materials.

    ``parts`` are the portable slices that it was made from.
    Raises ForgeError where it cannot be written.

    All files are complete beside their places before the first is moved; the manifest comes last, so that a folder
    with a manifest is a whole build. ``sealed``: of an encrypted build, so that what shows the model is for its owner
    alone, and the model itself stays in the store where that is sealed. ``sign`` is called with the folder of the
    complete files, and puts signatures beside them; where it fails, nothing is delivered.
    """
    staged = folder / STAGING
    with _refusing(f"out={folder}"):
        _clear(staged)  # of a run that was killed
        staged.mkdir(mode=0o700)
        try:
            _stage(outputs, staged, sealed)
            write_atomically(staged / PROVENANCE, statement_bytes(outputs, parts), private=sealed)
            write_atomically(staged / BOM, bom_bytes(outputs, parts), private=sealed)
            write_atomically(staged / MANIFEST, manifest(outputs, _kept(outputs, sealed)), private=sealed)
            if sign is not None:
                sign(staged)
            _place(staged, folder)
        finally:
            _clear(staged)


def _stage(outputs: Mapping[str, Output], staged: Path, sealed: bool) -> None:
    kept = _kept(outputs, sealed)
    for output in outputs.values():
        for name in output.stage.deliverables:
            if name not in kept:
                export(output, name, staged / name, private=sealed and output.discloses)


def _kept(outputs: Mapping[str, Output], sealed: bool) -> list[str]:
    """Return the deliverables that stay in the store: the model in clear, where nothing else is."""
    return [
        name
        for output in outputs.values()
        if sealed and output.store.is_sealed and output.stage.gives == "model"
        for name in output.stage.deliverables
        if name in output.action.outputs
    ]


def _place(staged: Path, folder: Path) -> None:
    for name in (MANIFEST, BUNDLE):
        (folder / name).unlink(missing_ok=True)
    delivered = (name for stage in STAGES.values() for name in stage.deliverables)
    files = (file for name in (*delivered, PROVENANCE, BOM, MANIFEST) for file in (f"{name}{SUFFIX}", name))
    for name in (ENVELOPE, *files):
        if (staged / name).exists():
            (staged / name).replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)  # of what was there before


def _clear(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turn what the file system refuses into a ForgeError about ``where``."""
    try:
        yield
    except OSError as error:
        raise ForgeError(
            where=where,
            expected="a place that can be written",
            found=error.strerror or type(error).__name__,
            fix="choose another place, or make room in this one",
        ) from error


def export(output: Output, name: str, destination: Path, *, private: bool = False) -> None:
    """Put one file of ``output`` at ``destination``, or remove a stale one there when the output has no such file."""
    if name in output.action.outputs:
        digest, size = output.action.outputs[name], output.action.sizes[name]
        output.store.export(digest, destination, size=size, private=private)
        if name in PROGRAMS:
            destination.chmod(destination.stat().st_mode | 0o111)
    else:
        destination.unlink(missing_ok=True)


def manifest(outputs: Mapping[str, Output], kept: Sequence[str] = ()) -> bytes:
    """Return `manifest.json`: per stage its action key, hit or built, seconds and output digests.

    Deliverables that are ``kept`` in the store are named.
    """
    stages = [output.manifest() for output in outputs.values()]
    return canonical_json({"format": 1, "stages": stages, **({"kept": list(kept)} if kept else {})}) + b"\n"


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write ``content`` beside ``path``, flush it to the disk and rename it into place. Raises ForgeError.

    ``private``: for its owner alone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _refusing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a process that was killed and had the same number
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
