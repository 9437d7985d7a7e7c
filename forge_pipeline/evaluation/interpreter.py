"""ONNX Runtime as the reference: one thread, every node as it is written, and any inner value on request.

Graph optimisations stay off. They would fuse a quantized model into integer kernels whose arithmetic depends on
this machine's instructions (8-bit products may saturate without VNNI); unfused, a model means what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import DataError
from forge_pipeline.ir import ONNXModule

if TYPE_CHECKING:
    from numpy.typing import NDArray

Outputs = dict[str, "NDArray[Any]"]


class Interpreter:
    """A model ready to run. ``taps`` names inner values to return beside the outputs."""

    def __init__(self, module: ONNXModule, *, where: str, taps: Sequence[str] = ()) -> None:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        from forge_pipeline.ir.reference.session import open_session

        self._where = where
        self.outputs: tuple[str, ...] = tuple(module.output_names)
        given = {*self.outputs, *module.input_names}
        self._fetched = [*self.outputs, *(name for name in taps if name not in given)]
        self._failures = (state.Fail, state.InvalidArgument, state.RuntimeException)
        self._session = open_session(_tapped(module, self._fetched).light, where=where)

    def __call__(self, feed: dict[str, NDArray[Any]]) -> Outputs:
        """Return outputs and taps by name. Raises DataError where the model cannot take the feed."""
        try:
            return dict(zip(self._fetched, self._session.run(self._fetched, feed), strict=True))
        except self._failures as error:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
            raise DataError(self._where, "inputs that it can take", f"{shapes}: {error}", "correct the data") from error


def _tapped(module: ONNXModule, names: Sequence[str]) -> ONNXModule:
    import onnx

    hidden = [name for name in names if name not in module.output_names]
    if not hidden:
        return module
    tapped = module.copy()
    tapped.light.graph.output.extend(onnx.ValueInfoProto(name=name) for name in hidden)
    return tapped
