"""ONNX Runtime as the reference interpreter: what a model computes, whatever any compiler makes of it.

One thread, every node as it is written, no product of integers saturating: the same numbers on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from forge_pipeline.errors import ConfigError, DataError, ModelError
from forge_pipeline.ir.external_data.mapped import (
    LEAST,
    array_of,
    is_mapped,
    mapped_file_of,
    mapped_files,
    spilling,
    tensor_of,
)
from forge_pipeline.ir.external_data.writer import without_initializers
from forge_pipeline.ir.reference.saturation import without_saturation
from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.ir.traversal import every_node
from forge_pipeline.registry import Registry
from forge_pipeline.width import width_of

Array = np.ndarray[Any, Any]

CHECK: Final = "check the model with `onnx.checker.check_model(path, full_check=True)`"

CPU: Final = "CPUExecutionProvider"
PROVIDERS = Registry(
    "place to run the reference interpreter", {"llvm": CPU, "cpu": CPU, "cuda": "CUDAExecutionProvider"}
)

LARGEST = (1 << 31) - 1
"""Bytes that protobuf takes in one message; the weights of a larger model go through a file."""

_PLAIN = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8})
_SHOWN = 500
_REFUSED = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
    errors.RuntimeException,
    RuntimeError,  # of the binding itself: an object that is no tensor
    ValueError,  # the same: a missing input
)


class Interpreter:
    """A model ready to run. ``outputs`` names its own outputs, in order; ``taps`` are inner values beside them.

    What a call gives is for one feed, and nothing of it is kept here: whoever goes on to the next feed has the
    memory of one, and ``each`` that of those at once.
    """

    __slots__ = ("_options", "_session", "_where", "outputs", "taps")

    def __init__(
        self,
        model: ModelProto,
        *,
        taps: Iterable[str] = (),
        where: str = "ONNX Runtime",
        fix: str = CHECK,
        optimized: bool = False,
        prepack: bool = True,
        provider: str = CPU,
    ) -> None:
        """Open a model of any size; weights that are held in files (``ir.external_data``) are mapped from there.

        ``optimized``: with ONNX Runtime's float optimisations, where speed counts for more than the last bit, and
        without where it fails at them (1.31 loses a tapped term of a sum of two convolutions).
        ``prepack=False``: constant weights are not packed for the kernels, so that an operator on the same data gives
        the same bits whether its operands are constants or not. Raises ModelError, about ``where`` and with ``fix``,
        if ONNX Runtime refuses the model; what it says names the node.
        """
        self.outputs = tuple(value.name for value in model.graph.output)
        self.taps = tuple(name for name in dict.fromkeys(taps) if name not in self.outputs)
        self._where = where
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4
        exact = without_saturation(_tapped(model, self.taps))
        for level in (True, False) if optimized else (False,):
            try:
                self._session = _session(exact, _session_options(optimized=level, prepack=prepack), provider)
                break
            except _REFUSED as error:
                if not level:
                    raise ModelError(where, "a model that ONNX Runtime can run", _said(error)[:_SHOWN], fix) from error

    def __call__(self, feed: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return ``names``, by default all outputs and taps, by name.

        Each is an array, or what ONNX Runtime makes of a sequence or an optional. A feed may have numpy's scalars in
        the place of arrays without dimensions. Raises DataError where the model cannot take the feed; what is found
        names the node.
        """
        wanted = [*self.outputs, *self.taps] if names is None else list(names)
        if not wanted:
            return {}  # ONNX Runtime would take no names for all of them
        fed = {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in feed.items()}
        try:
            return dict(zip(wanted, self._session.run(wanted, fed, self._options), strict=True))
        except _REFUSED as error:
            raise DataError(
                where=self._where,
                expected="arrays that the model computes with",
                found=f"{', '.join(map(_shown, fed.items()))}: {_said(error)}"[:_SHOWN],
                fix="give it inputs of the names, types and shapes that it declares",
            ) from error

    def each(self, feeds: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return what a call with each of ``feeds`` gives, in their order; as many at once as cores and memory allow.

        Results are those of calls one after the other: a run is one thread's.
        """
        most = width_of(None, len(feeds))
        if most < 2:
            return [self(feed, names) for feed in feeds]
        with ThreadPoolExecutor(most) as pool:
            return list(pool.map(lambda feed: self(feed, names), feeds))


def inference_function(model: ModelProto, inputs: Sequence[str], target: str) -> Callable[..., Array | list[Array]]:
    """Return ``f(input0, input1, ...)`` for a model: as it is written, without optimisations.

    The function gives one array, or a list where the model has several outputs; it raises DataError for arrays that
    the model cannot take. Raises ConfigError for a ``target`` that is unknown or not on this machine, ModelError for
    a model that ONNX Runtime refuses.
    """
    provider = PROVIDERS.pick(target, where="target")
    if provider not in ort.get_available_providers():
        raise ConfigError("target", f"one of {ort.get_available_providers()}", provider, "use target='llvm'")
    run = Interpreter(model, provider=provider)

    def infer(*arrays: Array) -> Array | list[Array]:
        if len(arrays) != len(inputs):
            raise TypeError(f"this model takes {len(inputs)} arrays ({', '.join(inputs)}), not {len(arrays)}")
        found = run({name: np.asarray(array) for name, array in zip(inputs, arrays, strict=True)})
        results = [found[name] for name in run.outputs]
        return results[0] if len(results) == 1 else results

    return infer


def _session_options(*, optimized: bool, prepack: bool) -> ort.SessionOptions:
    """Return options under which the sums are the same whatever number of cores the machine has.

    Even ``optimized``, QuantizeLinear and DequantizeLinear stay what they are: fused into integer kernels, 8-bit
    products saturate on machines without VNNI, and the model would no longer mean what it says.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # what goes wrong is raised, not printed
    return options


def _session(model: ModelProto, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    """Open a model; what it holds in files is mapped, and never packed anew, which would be a second copy of it.

    Other weights are given as arrays: to write and read them as one message takes longer than to open the model.
    """
    is_large = sum(byte_count(tensor) for tensor in model.graph.initializer if not is_mapped(tensor)) > LARGEST
    with spilling(is_large):
        if is_large:
            model = _in_files(model)
        if mapped_files(model):
            options.add_session_config_entry("session.disable_prepacking", "1")
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        placed = without_initializers(model)
        read = {name for node in every_node(model) for name in node.input}
        shown = {value.name for value in (*model.graph.input, *model.graph.output)}
        arrays: dict[str, ort.OrtValue] = {}
        for tensor in model.graph.initializer:
            if tensor.name not in read and tensor.name not in shown:
                continue  # ONNX Runtime would drop it, and refuse its array
            added, file = placed.graph.initializer.add(), mapped_file_of(tensor)
            if file is None and tensor.name in read and _is_plain(tensor):
                arrays[tensor.name] = ort.OrtValue.ortvalue_from_numpy(numpy_helper.to_array(tensor))
                added.MergeFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
                added.data_location = TensorProto.EXTERNAL
                added.external_data.add(key="location", value="an array")
                continue
            added.CopyFrom(tensor)
            if file is not None:
                added.external_data[0].value = f"proc/self/fd/{file.file.descriptor}"
        options.add_external_initializers(list(arrays), list(arrays.values()))
        return ort.InferenceSession(placed.SerializeToString(), options, providers=[provider], enable_fallback=0)


def _is_plain(tensor: TensorProto) -> bool:
    """Whether a tensor has its content, which is large, and numpy has its type."""
    return tensor.data_location == TensorProto.DEFAULT and tensor.data_type in _PLAIN and byte_count(tensor) >= LEAST


def _in_files(model: ModelProto) -> ModelProto:
    """Return a model whose large weights are where new constants go: see ``spilling``."""
    placed = without_initializers(model)
    for tensor in model.graph.initializer:
        is_small = tensor.data_type == TensorProto.STRING or tensor.ByteSize() < LEAST
        placed.graph.initializer.append(tensor if is_small else tensor_of(array_of(tensor), tensor.name))
    return placed


def _tapped(model: ModelProto, taps: Sequence[str]) -> ModelProto:
    """Return the model with ``taps`` among its outputs, whose types are left to ONNX Runtime; itself without any."""
    if not taps:
        return model
    tapped = ModelProto()
    tapped.CopyFrom(model)
    tapped.graph.output.extend(ValueInfoProto(name=name) for name in taps)
    return tapped


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def _shown(item: tuple[str, Any]) -> str:
    name, value = item
    kind = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
    return f"{name} {kind}"
