"""What a model file is, told by its content: its name is whatever somebody called it."""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge_pipeline.content import open_stream
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data import protobuf_wire

_HEAD: Final = 4096
_TAR_MAGIC: Final = slice(257, 262)
_MAX_ENTRIES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file: what it is called, and what to do with it where it cannot be read."""

    title: str
    advice: str


_TORCH = "convert it with `torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)`"
_KERAS = "convert it with `model.export('model.onnx', format='onnx')`"
_NOT_A_MODEL = "give a model file; ONNX is the format that every framework can write"

KINDS: Final = {
    "onnx": Kind(title="an ONNX model", advice="give it as it is"),
    "empty": Kind(title="an empty file", advice="copy or export the model again"),
    "pt2": Kind(title="a PyTorch exported program (.pt2)", advice=_TORCH),
    "torchscript": Kind(title="a TorchScript archive", advice=_TORCH),
    "torch-pickle": Kind(
        title="a pickled PyTorch checkpoint, which runs code when it is read",
        advice=f"in a place you trust, load it into its model, then {_TORCH}",
    ),
    "pickle": Kind(
        title="a Python pickle, which runs code when it is read",
        advice=f"in a place you trust, load it into its model, then {_TORCH}",
    ),
    "keras": Kind(title="a Keras archive (.keras)", advice=_KERAS),
    "hdf5": Kind(title="an HDF5 file, as older Keras writes (.h5)", advice=_KERAS),
    "tflite": Kind(
        title="a TensorFlow Lite model",
        advice="convert it with `python -m tf2onnx.convert --tflite MODEL --output model.onnx --opset 18`",
    ),
    "ort": Kind(title="a model in ONNX Runtime's format (.ort)", advice="give the ONNX file that it was made from"),
    "savedmodel": Kind(
        title="a TensorFlow SavedModel folder",
        advice="convert it with `python -m tf2onnx.convert --saved-model DIR --output model.onnx --opset 18`",
    ),
    "folder": Kind(title="a folder without a model", advice="give the model file inside it"),
    "elf": Kind(title="a compiled library or program (ELF)", advice="give the model that it was compiled from"),
    "sealed": Kind(title="an encrypted artifact", advice="give the model that it was compiled from"),
    "gguf": Kind(title="a GGUF file", advice=_NOT_A_MODEL),
    "safetensors": Kind(
        title="a safetensors file, which holds weights and no graph",
        advice=f"load it into its model, then {_TORCH}",
    ),
    "npy": Kind(title="a numpy array", advice="give the model; data belongs into data.path"),
    "npz": Kind(title="a numpy archive", advice="give the model; data belongs into data.path"),
    "zip": Kind(title="a zip archive without a model that is known", advice="unpack it and give the model"),
    "gzip": Kind(title="a gzip archive", advice="unpack it and give the model inside"),
    "tar": Kind(title="a tar archive", advice="unpack it and give the model inside"),
    "text": Kind(title="a text file", advice=_NOT_A_MODEL),
    "unknown": Kind(title="bytes of no known kind", advice=_NOT_A_MODEL),
}

_MAGIC: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x7fELF", "elf"),
    (0, b"\x89MLENC\r\n", "sealed"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (4, b"TFL3", "tflite"),
    (4, b"ORTM", "ort"),
    (0, b"GGUF", "gguf"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"\x1f\x8b", "gzip"),
    (_TAR_MAGIC.start, b"ustar", "tar"),
    (8, b'{"', "safetensors"),
)


def kind_of(path: Path) -> str:
    """Return the row of KINDS that describes ``path``. Raises ModelError where it cannot be read."""
    try:
        if path.is_dir():
            return "savedmodel" if (path / "saved_model.pb").is_file() else "folder"
        if path.exists() and not path.is_file():
            raise ModelError(str(path), "a plain file", "a device, a pipe or a socket", "give the name of a model file")
        with open_stream(path) as stream:
            head = stream.read(_HEAD)
            if not head:
                return "empty"
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _kind_of_content(head, data, path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> ModelError:
    """Return the error for a model file that the system does not give."""
    found = error.strerror or str(error)
    return ModelError(str(path), "a model file that can be read", found, "check the path and its permissions")


def _kind_of_content(head: bytes, data: mmap.mmap, path: Path) -> str:
    for offset, magic, kind in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return kind
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _kind_of_zip(path)
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):  # PROTO opcode of pickletools
        return "pickle"
    if protobuf_wire.looks_like_model(data):
        return "onnx"
    return "text" if _is_text(head) else "unknown"


def _kind_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.namelist()[:_MAX_ENTRIES]
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return "zip"
    names = {name.rpartition("/")[2] for name in entries}
    tests: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("pt2", lambda: "archive_format" in names or "serialized_exported_program.json" in names),
        ("torchscript", lambda: any("/code/" in f"/{name}" for name in entries) and "data.pkl" in names),
        ("torch-pickle", lambda: "data.pkl" in names),
        ("keras", lambda: {"config.json", "model.weights.h5"} <= names),
        ("npz", lambda: bool(names) and all(name.endswith(".npy") for name in names)),
    )
    return next((kind for kind, holds in tests if holds()), "zip")


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character may be cut at the end of what was read
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\r\n\t\f" for character in text)
