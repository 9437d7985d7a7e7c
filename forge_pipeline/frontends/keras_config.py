"""What a Keras model's configuration may name: Keras's own classes, and nothing that runs code or reads files.

Keras 3.15 has a safe mode for `.keras`; `.h5` files do not know it, and a configuration can import any module
(CVE-2025-1550), read any file (CVE-2025-12058, CVE-2025-9905). So the configuration is read here first, without Keras.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.json_objects import objects_below
from forge_pipeline.frontends.keras2 import is_keras2
from forge_pipeline.frontends.zips import open_zip

if TYPE_CHECKING:
    import h5py

_MODULE: Final = re.compile(r"(?:tf_|tensorflow\.python\.)?keras(?:\.(?:src|engine|[a-z_0-9]+))*|builtins")
_RUNS_CODE: Final = frozenset({"Lambda", "TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TFSMLayer", "__lambda__"})
_READS_FILES: Final = frozenset({"vocabulary", "vocabulary_file", "merges", "filepath", "proto", "filename"})
_ENTRIES: Final = re.compile(r"metadata\.json|config\.json|model\.weights\.h5|model\.weights\.npz")
_TEXT: Final = 64 << 20


def check_archive(path: Path) -> None:
    """Raise ModelError unless the `.keras` archive holds a configuration of Keras's own layers, and weights."""
    with open_zip(path) as archive:
        for name in archive.namelist():
            if not _ENTRIES.fullmatch(name):
                raise _refused(path, f"an entry {name[:80]!r}", "save the model without assets or custom objects")
        if archive.getinfo("config.json").file_size > _TEXT:
            raise _refused(path, "a configuration of more than 64 MiB", "save the model again")
        text = archive.read("config.json")
    check_config(path, text)


def check_hdf5(path: Path) -> None:
    """Raise ModelError unless the `.h5` file holds a model of Keras's own layers and refers to no other file."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            _check_links(path, file)
            text = file.attrs.get("model_config")
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _refused(path, "a damaged or cut file", "copy or save the model again") from error
    if text is None:
        raise _refused(
            path, "weights without a model", "load them into their model and save it whole, with model.save('m.keras')"
        )
    check_config(path, text)


def config_of_keras2(path: Path) -> Any:
    """Return the configuration in an `.h5` file that passed ``check_hdf5``, or None where Keras 3 wrote it."""
    import h5py

    with h5py.File(path, "r") as file:
        return json.loads(file.attrs["model_config"]) if is_keras2(file.attrs.get("keras_version")) else None


def check_config(path: Path, text: str | bytes) -> None:
    """Raise ModelError for a configuration that names a class outside Keras, code, or a file."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"a configuration that is no JSON ({error})", "copy or save the model again") from error
    for item in objects_below(config):
        name, module = item.get("class_name"), item.get("module")
        if isinstance(name, str):
            _check_class(path, item, name, module)
        for key in _READS_FILES & item.keys():
            if isinstance(item[key], str) and item[key]:
                raise _refused(
                    path,
                    f"the file name {item[key][:80]!r} as {key!r}",
                    "keep the vocabulary outside the model",
                )


def _check_class(path: Path, item: dict[str, Any], name: str, module: object) -> None:
    place = item.get("config", {}).get("name") if isinstance(item.get("config"), dict) else None
    shown = f"{name[:80]!r}" + (f" in layer {str(place)[:80]!r}" if place else "")
    if name in _RUNS_CODE:
        raise _refused(
            path, f"{shown}, which runs code of the file",
            "replace it by Keras's own layers (a Lambda of keras.ops is a Rescaling, Multiply, Activation ...), or "
            "convert the model where you trust it, with model.export('model.onnx', format='onnx')",
        )  # fmt: skip
    custom = item.get("registered_name")
    foreign = isinstance(module, str) and not _MODULE.fullmatch(module)
    registered = [entry for entry in (custom, name) if isinstance(entry, str) and ">" in entry]
    if foreign or any(not entry.startswith("keras>") for entry in registered):
        raise _refused(
            path, f"the custom object {shown} of {str(module or custom or 'an unnamed package')[:80]!r}",
            "convert the model where its classes are, with model.export('model.onnx', format='onnx')",
        )  # fmt: skip


def _check_links(path: Path, group: h5py.Group) -> None:
    """Refuse what makes HDF5 read other files: external links, external storage, virtual datasets."""
    import h5py

    stack = [group]
    while stack:
        inner = stack.pop()
        for name in inner:
            if not isinstance(inner.get(name, getlink=True), h5py.HardLink):
                raise _refused(path, f"a link {str(name)[:80]!r} to another place", "save the model again")
            item = inner[name]
            if isinstance(item, h5py.Group):
                stack.append(item)
            elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                raise _refused(path, f"data {str(name)[:80]!r} in another file", "save the model again")


def _refused(path: Path, found: str, fix: str) -> ModelError:
    return ModelError(
        where=str(path),
        expected="a Keras model of Keras's own layers, without code and other files",
        found=found,
        fix=fix,
    )
