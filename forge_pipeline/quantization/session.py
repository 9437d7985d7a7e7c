"""ONNX Runtime as the reference interpreter: the same numbers on every run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto, TensorProto

from forge_pipeline.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Session:
    """A model run on one thread: the same sums whatever number of cores the machine has."""

    __slots__ = ("_session", "outputs")

    def __init__(self, model: ModelProto, values: Collection[str] = (), *, faithful: bool = False) -> None:
        """Fetch ``values`` (float32, inside the graph) beside the outputs; ``faithful`` runs node by node as written.

        Raises ModelError where ONNX Runtime refuses the model.
        """
        import onnxruntime as ort
        from onnxruntime.capi import onnxruntime_pybind11_state as errors

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_DISABLE_ALL if faithful else level.ORT_ENABLE_ALL
        opened = with_outputs(model, values)
        try:
            self._session = ort.InferenceSession(
                opened.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except (errors.Fail, errors.InvalidGraph, errors.InvalidArgument, errors.NotImplemented) as error:
            raise ModelError(
                where="ONNX Runtime",
                expected="a model that it can run",
                found=str(error),
                fix="check the model with `onnx.checker.check_model(path, full_check=True)`",
            ) from error
        self.outputs = tuple(value.name for value in opened.graph.output)

    def run(self, feed: Mapping[str, NDArray[Any]], wanted: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return the outputs by name."""
        names = self.outputs if wanted is None else tuple(wanted)
        return dict(zip(names, self._session.run(list(names), dict(feed)), strict=True)) if names else {}


def with_outputs(model: ModelProto, values: Collection[str]) -> ModelProto:
    """Return the model with ``values`` among its outputs; the model itself where all of them are already."""
    present = {value.name for value in model.graph.output}
    missing = [name for name in dict.fromkeys(values) if name not in present]
    if not missing:
        return model
    opened = ModelProto()
    opened.CopyFrom(model)
    opened.graph.output.extend(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in missing)
    return opened
