"""Puts a finished build into the user's folder: all files complete, none left over from an earlier build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.runner import Output

MANIFEST = "manifest.json"
DELIVERABLES = {
    "quantize": ("model.onnx",),
    "evaluate": ("metrics.json", "layers.json"),
    "encrypt": ("model_library.so", "modelKey.bin", "metadata.json"),
}


def deliver(outputs: Mapping[str, Output], folder: Path) -> None:
    """Export the deliverables and the manifest into ``folder``; ForgeError where it cannot be written.

    Each file appears complete or not at all, and the manifest last: a folder with a manifest is a whole build.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        for stage, names in DELIVERABLES.items():
            for name in names:
                export(outputs[stage], name, folder / name)
        write_atomically(folder / MANIFEST, manifest(outputs))
    except OSError as error:
        raise ForgeError(
            where=f"out={folder}",
            expected="a folder that can be written",
            found=error.strerror or type(error).__name__,
            fix="choose another folder with out=FOLDER, or make room in this one",
        ) from error


def export(output: Output, name: str, destination: Path) -> None:
    """Put one file of ``output`` at ``destination``, or remove a stale one there when the output has no such file."""
    if name in output.action.outputs:
        output.store.export(output.action.outputs[name], destination)
    else:
        destination.unlink(missing_ok=True)


def manifest(outputs: Mapping[str, Output]) -> bytes:
    """Return `manifest.json`: per stage its action key, hit or built, seconds and output digests."""
    return canonical_json({"format": 1, "stages": [output.manifest() for output in outputs.values()]}) + b"\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, flush it to the disk and rename it into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
