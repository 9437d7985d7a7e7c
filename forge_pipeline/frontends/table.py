"""Which kinds of model can be read, by what, and what has to be installed for it."""

from __future__ import annotations

import importlib.util
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends.contract import Declared, Limits
from forge_pipeline.frontends.source import Source
from forge_pipeline.ir.external_data.file_kinds import KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from forge_pipeline.ir.external_data.content import ExternalData

LIMITS: Final = Limits(memory=16 << 30, seconds=1800)  # conf/load/default.yaml has the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """How a kind of file is read.

    ``module`` converts it, in a process of its own; None is ONNX itself, which is read here. ``packages`` maps what
    is imported to the distribution whose version decides the result, ``extra`` is what installs them. ``declares``:
    the file does not say what its inputs are. ``sizes``: it takes sizes for open extents, which its exporter may need.
    """

    module: str | None
    packages: Mapping[str, str]
    extra: str = ""
    declares: bool = False
    sizes: bool = False


_TORCH: Final = {"torch": "torch", "onnxscript": "onnxscript"}
_KERAS: Final = Frontend(
    module="forge_pipeline.frontends.keras", packages={"keras": "keras", **_TORCH}, extra="keras", sizes=True
)

FRONTENDS: dict[str, Frontend] = {
    "onnx": Frontend(module=None, packages={}),
    "ort": Frontend(module="forge_pipeline.frontends.ort", packages={"onnxruntime": "onnxruntime"}),
    "pt2": Frontend(module="forge_pipeline.frontends.torch", packages=_TORCH, extra="torch"),
    "torchscript": Frontend(
        module="forge_pipeline.frontends.torchscript", packages=_TORCH, extra="torch", declares=True
    ),
    "keras": _KERAS,
    "hdf5": _KERAS,
    "savedmodel": Frontend(
        module="forge_pipeline.frontends.tensorflow",
        packages={"tensorflow": "tensorflow", "tf2onnx": "tf2onnx"},
        extra="tensorflow",
    ),
    "tflite": Frontend(module="forge_pipeline.frontends.tflite.convert", packages={"tflite": "tflite"}, extra="tflite"),
}  # kind of file -> what reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An ONNX model as a front end gives it, not yet checked, and what finds its external data."""

    model: ModelProto
    external: ExternalData | None
    kind: str
    notes: Mapping[str, Any]
    holds: object = None  # what keeps the files in place that ``external`` reads


def frontend_for(path: Path) -> Frontend:
    """Return the row for what ``path`` is. Raises ModelError where there is none, or where its extra is missing."""
    kind = kind_of(path)
    if kind not in FRONTENDS:
        raise ModelError(
            where=str(path),
            expected="a model that can be loaded: " + ", ".join(KINDS[name].title for name in FRONTENDS),
            found=KINDS[kind].title,
            fix=KINDS[kind].advice,
        )
    row = FRONTENDS[kind]
    missing = [name for name in row.packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            where=str(path),
            expected=f"{', '.join(missing)}, to read {KINDS[kind].title}",
            found="not installed",
            fix=f"pip install 'forge-pipeline[{row.extra}]'",
        )
    return row


def tools_for(path: Path) -> tuple[str, ...]:
    """Return the distributions that decide what ``path`` becomes. Raises ModelError as ``frontend_for``."""
    return tuple(frontend_for(path).packages.values())


def import_model(
    source: Source,
    *,
    inputs: tuple[Declared, ...] = (),
    limits: Limits = LIMITS,
    sizes: Mapping[str, int] = types.MappingProxyType({}),
) -> Imported:
    """Read ``source`` with the front end for what it is. Raises ModelError, and ConfigError for ``inputs``.

    Open extents that ``sizes`` names may be numbers in the result: the notes have these (`sizes`).
    """
    row = frontend_for(source.path)
    kind = kind_of(source.path)
    if inputs and not row.declares:
        raise ConfigError(
            where="model.inputs",
            expected=f"nothing: {KINDS[kind].title} says what its inputs are",
            found=", ".join(item.name for item in inputs),
            fix="remove model.inputs",
        )
    if row.module is None:
        from forge_pipeline.ir.external_data.reader import open_model

        opened = open_model(source.path)
        return Imported(model=opened.model, external=opened.external, kind=kind, notes={}, holds=opened.mapped_files)
    from forge_pipeline.frontends.import_process import import_apart
    from forge_pipeline.ir.external_data.reader import open_model

    options = {"sizes": dict(sizes)} if row.sizes else {}
    answer = import_apart(row.module, source.path, inputs, limits, **options)
    opened = open_model(answer.model)
    kept = (opened.mapped_files, answer.folder)
    return Imported(model=opened.model, external=opened.external, kind=kind, notes=answer.notes, holds=kept)
