"""model, ranges -> model: the model with integers where integers are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.registry import Registry
from forge_pipeline.stages.contract import Result

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.quantization.ranges import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/quantize/*.yaml.

    ``reduce_range``: 7-bit weights, for instructions that add pairs of products in 16 saturating bits;
    ``percentile``: the share of values, in percent, that the method of that name keeps; ``keep_float``: names of
    layers that stay in float.
    """

    method: Literal["none", "static", "dynamic"]
    activation_dtype: Literal["uint8", "int8", "uint16", "int16"]
    kernel_dtype: Literal["int8", "uint8"]
    bias_dtype: Literal["int32", "float32"]
    per_channel: bool
    symmetric: bool
    reduce_range: bool
    calib_method: Literal["minmax", "average", "percentile", "entropy", "mse"]
    percentile: float
    keep_float: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 50.0 < self.percentile <= 100.0:
            raise ConfigError(
                "quantize.percentile", "a share in percent, over 50 and up to 100", f"{self.percentile:g}", "try 99.999"
            )


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


METHODS: Registry[Callable[..., Result]] = Registry("quantization method", {"none": _none, "static": _static, "dynamic": _dynamic})
