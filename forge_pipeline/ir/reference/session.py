"""How ONNX Runtime is opened as the reference interpreter: one thread, every node as it is written, none saturating."""

from __future__ import annotations

import onnxruntime as ort
from onnx import ModelProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import held_of, holds
from forge_pipeline.ir.reference.saturation import without_saturation

CHECK = "check the model with `onnx.checker.check_model(path, full_check=True)`"
_LONGEST = 500


def session_options(*, optimized: bool = False) -> ort.SessionOptions:
    """Return options under which the sums are the same whatever number of cores the machine has.

    Even ``optimized``, QuantizeLinear and DequantizeLinear stay what they are: fused into integer kernels, 8-bit
    products saturate on machines without VNNI, and the model would no longer mean what it says.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised, not printed
    return options


def open_session(
    model: ModelProto | bytes,
    *,
    where: str,
    fix: str = CHECK,
    optimized: bool = False,
    provider: str = "CPUExecutionProvider",
) -> ort.InferenceSession:
    """Open a model, serialised or not. Raises ModelError, about ``where`` and with ``fix``, if it cannot run."""
    exact = without_saturation(model)
    try:
        return session(exact, session_options(optimized=optimized), provider)
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        found = " ".join(str(error).split())[:_LONGEST]
        raise ModelError(where=where, expected="a model that ONNX Runtime can run", found=found, fix=fix) from error


def session(
    model: ModelProto | bytes,
    options: ort.SessionOptions,
    provider: str = "CPUExecutionProvider",
    *,
    prepack: bool = True,
) -> ort.InferenceSession:
    """Open a model; weights that are held in files (``ir.held``) are mapped from there. Raises what ONNX Runtime does.

    Such weights are never packed anew for the kernels, which would be a second copy of them in memory.
    """
    held = () if isinstance(model, bytes) else holds(model)
    if held or not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if isinstance(model, bytes):
        return ort.InferenceSession(model, options, providers=[provider])
    if not held:
        return ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
    placed = ModelProto()
    placed.CopyFrom(model)
    for tensor in placed.graph.initializer:
        file = held_of(tensor)
        if file is not None:
            tensor.external_data[0].value = f"proc/self/fd/{file.file.descriptor}"
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    return ort.InferenceSession(placed.SerializeToString(), options, providers=[provider])
