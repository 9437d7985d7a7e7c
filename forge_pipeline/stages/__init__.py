"""The stages, in the order in which a model meets them."""

from __future__ import annotations

from forge_pipeline.registry import Registry
from forge_pipeline.stages.contract import DELIVERED, Stage

STAGES = Registry(
    "stage",
    {
        stage.name: stage
        for stage in (
            Stage(
                name="load", version=5, takes={"source": "source"}, gives="model",
                tools=("onnx",), per_target=False, folder="shared/load",
            ),
            Stage(
                name="fold", version=3, takes={"model": "load"}, gives="model",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/fold",
            ),
            Stage(
                name="calibrate", version=2, takes={"model": "fold", "data": "calibration data"}, gives="ranges",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/calibrate",
                wants=("progress",),
            ),
            Stage(
                name="quantize", version=3,
                takes={"model": "fold", "ranges": "calibrate", "data": "calibration data"}, gives="model",
                tools=("onnx", "onnxruntime", "numpy"), per_target=False, folder="shared/quantize/{target}",
            ),
            Stage(
                name="compile", version=45, takes={"model": "quantize"}, gives="library",
                tools=("apache-tvm", "apache-tvm-ffi", "ziglang", "onnx", "onnxruntime", "numpy"), per_target=True,
                folder="plain/{target}", wants=("key",),
            ),
            Stage(
                name="evaluate", version=6,
                takes={"reference": "fold", "model": "quantize", "library": "compile", "data": "data"}, gives="metrics",
                tools=("onnx", "onnxruntime", "numpy", "apache-tvm"), per_target=True, folder=DELIVERED,
            ),
            Stage(
                name="encrypt", version=1, takes={"library": "compile"}, gives="sealed",
                tools=(), per_target=True, folder=DELIVERED, wants=("password", "entropy"),
            ),
        )
    },
)  # fmt: skip
