"""ONNX Runtime as the reference interpreter: the same numbers on every run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto, TensorProto

from forge_pipeline.ir.reference.session import open_session

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Session:
    """A model run on one thread: the same sums whatever number of cores the machine has."""

    __slots__ = ("_session", "outputs")

    def __init__(self, model: ModelProto, values: Collection[str] = (), *, faithful: bool = False) -> None:
        """Fetch ``values`` (float32, inside the graph) beside the outputs; ``faithful`` runs node by node as written.

        Raises ModelError where ONNX Runtime refuses the model.
        """
        opened = with_outputs(model, values)
        self._session = open_session(opened.SerializeToString(), where="ONNX Runtime", optimized=not faithful)
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
