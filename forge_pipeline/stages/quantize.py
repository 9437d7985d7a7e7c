"""model, ranges -> model: the model with integers where integers are enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from forge_pipeline.errors import DataError
from forge_pipeline.quantization.settings import Config
from forge_pipeline.registry import Registry
from forge_pipeline.stages.contract import Result

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.quantization.calibration.ranges import Ranges


def run(config: Config, model: ONNXModule, ranges: Ranges | None = None) -> Result:
    """Return a new model; both inputs stay as they were.

    Raises DataError where static quantization has no ranges or an activation is constant, ConfigError for a layer
    in ``keep_float`` that is not there, ModelError where nothing can be quantized or a bias overflows.
    """
    return METHODS[config.method](config, model, ranges)


def _none(config: Config, model: ONNXModule, ranges: Ranges | None) -> Result:
    return Result(output=model, report={"method": "none"})


def _static(config: Config, model: ONNXModule, ranges: Ranges | None) -> Result:
    from forge_pipeline.quantization.build import quantized_statically

    if ranges is None:
        raise DataError(
            where="quantize.method=static",
            expected="ranges from calibration",
            found="none",
            fix="give data.path=FILE to calibrate with, or choose quantize=dynamic, which needs no data",
        )
    output, report = quantized_statically(config, model, ranges)
    return Result(output=output, report={"method": "static", **report})


def _dynamic(config: Config, model: ONNXModule, ranges: Ranges | None) -> Result:
    from forge_pipeline.quantization.build import quantized_dynamically

    output, report = quantized_dynamically(config, model)
    return Result(output=output, report={"method": "dynamic", **report})


def _float16(config: Config, model: ONNXModule, ranges: Ranges | None) -> Result:
    from forge_pipeline.quantization.build import in_float16

    output, report = in_float16(model)
    return Result(output=output, report={"method": "float16", **report})


def _weights(config: Config, model: ONNXModule, ranges: Ranges | None) -> Result:
    from forge_pipeline.quantization.build import with_small_weights

    output, report = with_small_weights(config, model)
    return Result(output=output, report={"method": "weights", **report})


METHODS: Registry[Callable[[Config, ONNXModule, Ranges | None], Result]] = Registry(
    "quantization method",
    {"none": _none, "static": _static, "dynamic": _dynamic, "float16": _float16, "weights": _weights},
)
__all__ = ["Config", "run"]
