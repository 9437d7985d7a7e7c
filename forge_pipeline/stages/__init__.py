"""The stages, in the order in which a model meets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forge_pipeline.registry import Registry
from forge_pipeline.stages.contract import DELIVERED, Joint, Slice, Stage, stage_and_variant

STAGES = Registry(
    "stage",
    {
        stage.name: stage
        for stage in (
            Stage(
                name="load", version=11, takes={"source": "source"}, gives="model",
                tools=("onnx",), per_target=False, folder="shared/load",
            ),
            Stage(
                name="fold", version=11, takes={"model": "load"}, gives="model",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/fold",
            ),
            Stage(
                name="calibrate", version=2, takes={"model": "fold", "data": "calibration data"}, gives="ranges",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/calibrate",
                deliverables=("ranges.svg",),  # not ranges.npz: what quantize reads, and nobody else
                wants=("progress",),
            ),
            Stage(
                name="quantize", version=9,
                takes={"model": "fold", "ranges": "calibrate", "data": "calibration data"}, gives="model",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/quantize/{target}",
                deliverables=("model.onnx", "model.data"),
            ),
            Stage(
                name="compile", version=133, takes={"model": "quantize", "data": "calibration data"}, gives="library",
                tools=("apache-tvm", "apache-tvm-ffi", "ziglang", "onnx", "onnxruntime", "numpy"), per_target=True,
                folder="plain/{target}", wants=("key", "dump", "shelf"), joint=Joint(code="combine", version=1),
            ),
            Stage(
                name="evaluate", version=14,
                takes={"reference": "fold", "model": "quantize", "library": "compile", "data": "data"}, gives="metrics",
                tools=("onnx", "onnxruntime", "numpy"), per_target=True, folder=DELIVERED,
                deliverables=("metrics.json", "latency.json", "layers.json", "layers.svg"), wants=("device", "quiet"),
                joint=Joint(code="summarize", version=1, takes={"library": "compile"}),
            ),
            Stage(
                name="encrypt", version=4, takes={"library": "compile"}, gives="sealed",
                tools=("ziglang",), per_target=True, folder=DELIVERED,
                deliverables=("model_library.so", "model", "libmodel.a", "model.h", "modelKey.bin", "metadata.json"),
                wants=("password", "entropy"),
            ),
        )
    },
)  # fmt: skip


def giving(kind: str) -> Stage:
    """Return the stage that gives the one artifact of this kind."""
    (stage,) = (stage for stage in STAGES.values() if stage.gives == kind)
    return stage


def taking(origin: str) -> Stage:
    """Return the stage that takes what comes from outside under this name."""
    (stage,) = (stage for stage in STAGES.values() if origin in stage.takes.values())
    return stage


def tags_of(portable: Slice) -> tuple[str, ...]:
    """Return the tags of the CPUs whose outputs a step joins; of one that joins none, nothing."""
    target = portable.get("target")
    return tuple(target.get("variants", ())) if isinstance(target, Mapping) else ()


def stage_of(step: str, portable: Slice) -> Stage:
    """Return the row of a step of a build: a stage, one for one CPU of several, or what joins these."""
    name, variant = stage_and_variant(step)
    stage = STAGES[name]
    if variant:
        return stage.alone(variant, {name for name, row in STAGES.items() if row.joint is not None})
    tags = tags_of(portable)
    return stage.joined(tags) if tags and stage.joint is not None else stage


def in_order(steps: Iterable[str]) -> list[str]:
    """Return the names of steps in the order of a build: a stage's for single CPUs before what joins them."""
    place = {name: index for index, name in enumerate(STAGES)}
    parts = sorted(
        (place[stage], not variant, variant, name) for name in steps for stage, variant in [stage_and_variant(name)]
    )
    return [part[-1] for part in parts]
