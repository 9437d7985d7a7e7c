"""What travels between stages: for each kind of artifact its files, how to read it and how to write it.

``identity`` names the files that make the artifact what it is: their digests stand for it in the action keys of
the stages that take it. The other files are for people, and may change without rebuilding anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.content import Content, FileRange, OpenFile, open_stream
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError
from forge_pipeline.registry import Registry

if TYPE_CHECKING:
    from forge_pipeline.crypto.envelope import Sealed
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.quantization.calibration.ranges import Ranges
    from forge_pipeline.runtime.bundle import Library
    from forge_pipeline.runtime.variants import Combined
    from forge_pipeline.stages.evaluate import Metrics

Files = Mapping[str, Path]
Contents = dict[str, Content]

REPORT, KERNELS = "report.json", "kernels.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of artifact. ``write`` gives its files; the runner adds the report from the stage's result.

    A file named in ``optional`` may be absent: a plain library has no key file. One named in ``outside`` holds what is
    too large for the first file: for people, the two are one. One named in ``fresh`` has other bytes each time it is
    built: it is random, or measured. ``discloses`` says whether its files show the model (weights, code, inner names)
    or the samples to whoever reads them without a password.
    """

    identity: tuple[str, ...]
    extra: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    read: Callable[[Files], Any]
    write: Callable[[Any], Contents]
    discloses: Callable[[Container[str]], bool] = lambda names: True

    @property
    def files(self) -> tuple[str, ...]:
        """All file names of the artifact, the report aside."""
        return self.identity + self.extra


def _read_model(files: Files) -> ONNXModule:
    from forge_pipeline.ir import ONNXModule

    data = files.get(DATA)
    if data is None:
        return ONNXModule.from_file(files["model.onnx"])
    module = ONNXModule.from_file(files["model.onnx"], own={DATA: data})
    return module.kept_outside()


def _write_model(model: ONNXModule) -> Contents:
    from forge_pipeline.ir.external_data.writer import files

    return files(model, "model.onnx", DATA)


def _read_ranges(files: Files) -> Ranges:
    from forge_pipeline.quantization.calibration.ranges import Ranges

    return Ranges.from_bytes(_bytes(files["ranges.npz"]))


def _write_ranges(ranges: Ranges) -> Contents:
    from forge_pipeline.quantization.calibration.histogram_svg import histograms_svg

    return {"ranges.npz": ranges.to_bytes(), "ranges.svg": histograms_svg(ranges)}


def _read_library(files: Files) -> Library | Combined:
    from forge_pipeline.runtime.bundle import FOOTER, Library, has_variants
    from forge_pipeline.runtime.variants import Combined

    path, kernels = files["model_library.so"], files.get(KERNELS)
    with open_stream(path) as stream:
        stream.seek(max(0, path.stat().st_size - FOOTER))
        is_for_several = has_variants(stream.read())
    if is_for_several:
        return Combined.from_file(path)
    return replace(Library.from_file(path), layers=json.loads(_bytes(kernels)) if kernels else {})


def _write_library(library: Library | Combined) -> Contents:
    from forge_pipeline.runtime.bundle import Library

    own = {KERNELS: canonical_json(dict(library.layers))} if isinstance(library, Library) and library.layers else {}
    return {"model_library.so": library.content(), "metadata.json": library.metadata_bytes(), **own}


def _read_sealed(files: Files) -> Sealed:
    from forge_pipeline.crypto.envelope import Sealed

    form = next((form for form, file in MODEL_FILES.items() if file in files), None)
    if form is None or METADATA not in files:
        raise ArtifactError("sealed artifact", "a library and its metadata", ", ".join(files), "build it again")
    key, header = (_bytes(files[name]) if name in files else None for name in (KEY, HEADER))
    return Sealed(
        model=_on_disk(files[MODEL_FILES[form]]), key=key, metadata=_bytes(files[METADATA]), form=form, header=header
    )


def _bytes(path: Path) -> bytes:
    with open_stream(path) as stream:
        return stream.read()


def _on_disk(path: Path) -> FileRange:
    file = OpenFile.of(path)
    return FileRange(file, 0, file.size)


def _write_sealed(sealed: Sealed) -> Contents:
    model = MODEL_FILES[sealed.form]
    contents = {model: sealed.model, KEY: sealed.key, METADATA: sealed.metadata, HEADER: sealed.header}
    return {file: content for file, content in contents.items() if content is not None}


def _read_metrics(files: Files) -> Metrics:
    from forge_pipeline.stages.evaluate import Metrics

    return Metrics.from_bytes(*(_bytes(files[name]) for name in ("metrics.json", "latency.json", "layers.json")))


def _write_metrics(metrics: Metrics) -> Contents:
    from forge_pipeline.evaluation.plot import layers_svg

    return {
        "metrics.json": metrics.metrics_bytes(),
        "latency.json": metrics.latency_bytes(),
        "layers.json": metrics.layers_bytes(),
        "layers.svg": layers_svg(metrics.layers),
    }


DATA = "model.data"
"""The weights of a model that is too large to have them inside."""

MODEL_FILES = {"library": "model_library.so", "executable": "model", "objects": "libmodel.a"}
"""What is delivered of a model, by its form."""
PROGRAMS = (MODEL_FILES["executable"],)
"""The files that may be started."""
KEY, METADATA, HEADER = "modelKey.bin", "metadata.json", "model.h"
SEALED_FILES = (*MODEL_FILES.values(), KEY, METADATA, HEADER)

KINDS = Registry(
    "kind of artifact",
    {
        "model": Kind(
            identity=("model.onnx", DATA), optional=(DATA,), outside=(DATA,), read=_read_model, write=_write_model
        ),
        "ranges": Kind(identity=("ranges.npz",), extra=("ranges.svg",), read=_read_ranges, write=_write_ranges),
        "library": Kind(
            identity=("model_library.so",),
            extra=("metadata.json", KERNELS),
            optional=(KERNELS,),
            read=_read_library,
            write=_write_library,
        ),
        "sealed": Kind(
            identity=SEALED_FILES,
            optional=tuple(name for name in SEALED_FILES if name != METADATA),
            fresh=SEALED_FILES,
            read=_read_sealed,
            write=_write_sealed,
            discloses=lambda names: KEY not in names,  # without a key file it is a plain library
        ),
        "metrics": Kind(
            identity=("metrics.json", "layers.json"),
            extra=("latency.json", "layers.svg"),
            fresh=("latency.json",),
            read=_read_metrics,
            write=_write_metrics,
        ),
    },
)
