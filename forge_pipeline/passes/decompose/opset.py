"""Another version of ONNX's operator set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx
import onnx.version_converter

from forge_pipeline.ir.traversal import every_node
from forge_pipeline.passes.contract import Tolerance, Transformation, verified
from forge_pipeline.passes.errors import PassError
from forge_pipeline.passes.graph import Graph

SCAN_WITHOUT_BATCH = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsetOptions:
    """``version``: of ONNX's own operator set, to convert to.

    ``only``: ``up`` or ``down``; a model beyond ``version`` stays as it is then. ``required`` false: a model that
    cannot be converted stays as it is too, and the reason is among the findings.
    """

    version: int
    only: Literal["up", "down"] | None = None
    required: bool = True


@verified(Tolerance())
class ConvertOpset(Transformation[OpsetOptions]):
    """Convert to another version of ONNX's operator set, by ONNX's version converter; refuse what it cannot do."""

    in_bodies = False
    options_type = OpsetOptions

    def call(self, graph: Graph) -> int:
        """Convert the whole model."""
        version = self.options.version
        if not self._wanted(graph):
            return 0
        model = graph.model()
        try:
            _check_scans(model, graph.opset(), version)
            converted = onnx.version_converter.convert_version(model, version)
            onnx.checker.check_model(converted)
        except (RuntimeError, onnx.checker.ValidationError) as error:
            if not self.options.required:
                graph.findings["convert-opset"] = f"stays at set {graph.opset()}: {str(error).splitlines()[0]}"
                return 0
            raise PassError(
                where="pass 'convert-opset'",
                expected=f"a model that can be written in operator set {version}, from {graph.opset()}",
                found=str(error).splitlines()[0],
                fix="choose a version nearer to the model's own, or export the model for that version",
            ) from error
        del converted.graph.value_info[:]
        converted.ir_version = max(model.ir_version, 4)
        _keep_interface(model, converted)
        graph.reset(converted)
        return 1

    def _wanted(self, graph: Graph) -> bool:
        now, version = graph.opset(), self.options.version
        return now != version and (self.options.only is None or (self.options.only == "up") is (version > now))

    def ensures(self, graph: Graph) -> None:
        """The version is the one asked for."""
        if graph.opset() != self.options.version:
            raise PassError(
                where="pass 'convert-opset'",
                expected=f"operator set {self.options.version}",
                found=str(graph.opset()),
                fix="report this with the model",
            )


def _check_scans(model: onnx.ModelProto, now: int, version: int) -> None:
    """Raise RuntimeError where a Scan would get another meaning: the converter leaves it as it is, without a word."""
    if (now < SCAN_WITHOUT_BATCH) is not (version < SCAN_WITHOUT_BATCH) and any(
        node.op_type == "Scan" for node in every_node(model)
    ):
        raise RuntimeError(f"Scan has no batch axis from set {SCAN_WITHOUT_BATCH} on")


def _keep_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Put back the types of inputs and outputs as they were stated, which the converter writes anew."""
    for field in ("input", "output"):
        stated = {value.name: value for value in getattr(before.graph, field)}
        for value in getattr(after.graph, field):
            if value.name in stated:
                value.CopyFrom(stated[value.name])
