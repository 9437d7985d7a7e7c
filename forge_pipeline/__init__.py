"""A declarative build for machine-learning models: one model, many boards, bytes that can be trusted.

The public surface; each name is imported when it is first used, so that a device which runs an `Engine` never loads
the compiler.
"""

import contextlib
import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it once, when it is imported: no build phones home
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].endswith(__name__) and not sys.flags.safe_path:
    # `python -m forge_pipeline` began it with the current folder, if there is one: nothing that lies there is imported
    with contextlib.suppress(OSError):
        sys.path[:1] = [] if sys.path[0] in ("", os.getcwd()) else sys.path[:1]  # noqa: PTH109  pathlib costs 5 ms

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from forge_pipeline.api.build import build as build
    from forge_pipeline.api.load import from_keras as from_keras
    from forge_pipeline.api.load import from_onnx as from_onnx
    from forge_pipeline.api.load import from_tensorflow as from_tensorflow
    from forge_pipeline.api.load import from_tflite as from_tflite
    from forge_pipeline.api.load import from_torch as from_torch
    from forge_pipeline.api.load import load as load
    from forge_pipeline.api.onnx_module import ONNXModule as ONNXModule
    from forge_pipeline.api.relax_module import RelaxModule as RelaxModule
    from forge_pipeline.errors import ForgeError as ForgeError
    from forge_pipeline.frontends.contract import Declared as Declared
    from forge_pipeline.target import Target as Target
    from forge_pipeline.target import list_android_tags as list_android_tags
    from forge_pipeline.target import list_arm_tags as list_arm_tags
    from forge_pipeline.target import list_cuda_tags as list_cuda_tags
    from forge_pipeline.target import list_target_tags as list_target_tags
    from forge_pipeline.target import list_x86_tags as list_x86_tags
    from forge_runtime.engine import Engine as Engine

_HOME = {
    "Declared": ".frontends.contract",
    "Engine": "forge_runtime.engine",
    "ForgeError": ".errors",
    "ONNXModule": ".api.onnx_module",
    "RelaxModule": ".api.relax_module",
    "Target": ".target",
    "build": ".api.build",
    "from_keras": ".api.load",
    "from_onnx": ".api.load",
    "from_tensorflow": ".api.load",
    "from_tflite": ".api.load",
    "from_torch": ".api.load",
    "list_android_tags": ".target",
    "list_arm_tags": ".target",
    "list_cuda_tags": ".target",
    "list_target_tags": ".target",
    "list_x86_tags": ".target",
    "load": ".api.load",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  the table above is the list


def __getattr__(name: str) -> "Any":
    """Import a public name from its home."""
    if name not in _HOME:
        hint = "; it is RelaxModule here (docs/from_forge.md)" if name == "RelayModule" else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return __all__
