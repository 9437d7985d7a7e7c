"""ONNX Runtime as the reference interpreter: what a model computes, whatever any compiler makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.ir.reference.session import open_session
from forge_pipeline.registry import Registry

Array = np.ndarray[Any, Any]

PROVIDERS = Registry(
    "place to run the reference interpreter",
    {"llvm": "CPUExecutionProvider", "cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"},
)


def inference_function(model: ModelProto, inputs: Sequence[str], target: str) -> Callable[..., Array | list[Array]]:
    """Return ``f(input0, input1, ...)`` for a model: as it is written, without optimisations.

    The function gives one array, or a list where the model has several outputs; it raises DataError for arrays that
    the model cannot take. Raises ConfigError for a
    ``target`` that is unknown or not on this machine, ModelError for a model that ONNX Runtime refuses.
    """
    provider = PROVIDERS.pick(target, where="target")
    if provider not in ort.get_available_providers():
        raise ConfigError("target", f"one of {ort.get_available_providers()}", provider, "use target='llvm'")
    session = open_session(model, where="ONNX Runtime", provider=provider)

    def infer(*arrays: Array) -> Array | list[Array]:
        if len(arrays) != len(inputs):
            raise TypeError(f"this model takes {len(inputs)} arrays ({', '.join(inputs)}), not {len(arrays)}")
        feeds = {name: np.asarray(array) for name, array in zip(inputs, arrays, strict=True)}
        try:
            results: list[Array] = session.run(None, feeds)
        except (errors.Fail, errors.InvalidArgument, errors.RuntimeException) as error:
            shown = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
            raise DataError(
                where="inference",
                expected="arrays that the model computes with",
                found=f"{shown}: {' '.join(str(error).split())}"[:500],
                fix="see input_shapes and input_dtypes",
            ) from error
        return results[0] if len(results) == 1 else results

    return infer
