"""model, ranges, data -> model: the model with integers where integers are enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import DataError
from forge_pipeline.quantization import settings
from forge_pipeline.registry import Registry
from forge_pipeline.stages.contract import Rest, Result, Slice

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.quantization.calibration.probes import Probe
    from forge_pipeline.quantization.calibration.ranges import Ranges


ANY = "any"
"""A method of conf/quantize that the data decides about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(settings.Config):
    """conf/quantize/*.yaml, and the part of conf/data/*.yaml that says how samples become inputs; null without data."""

    data: Preparation | None


def sliced(section: Slice, rest: Rest) -> Slice:
    """Choose the method where that is left to the data, and add how samples become inputs where they are read."""
    if section.get("method") == ANY:
        section = {**section, "method": "static" if rest.has_data else "dynamic"}
    return {**section, "data": None if unread(section) else rest.preparation}


def unread(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Only static quantization asks for calibrated ranges, and for the data that they were calibrated with."""
    return () if config.get("method") == "static" else ("ranges", "data")


def run(config: Config, model: ONNXModule, ranges: Ranges | None = None, data: Dataset | None = None) -> Result:
    """Return a new model; the inputs stay as they were.

    ``data``: what the ranges were calibrated with, to try choices on; needed where the configuration leaves any.
    Raises DataError where static quantization has no ranges or an activation is constant, ConfigError for a layer
    in ``keep_float`` that is not there, ModelError where nothing can be quantized.
    """
    return METHODS[config.method](config, model, ranges, data)


def _none(config: Config, model: ONNXModule, ranges: Ranges | None, data: Dataset | None) -> Result:
    return Result(output=model, report={"method": "none"})


def _static(config: Config, model: ONNXModule, ranges: Ranges | None, data: Dataset | None) -> Result:
    from forge_pipeline.quantization.build import quantize_statically

    if ranges is None:
        raise DataError(
            where="quantize.method=static",
            expected="ranges from calibration",
            found="none",
            fix="give data.path=FILE to calibrate with, or choose quantize=dynamic, which needs no data",
        )
    output, report = quantize_statically(config, model, ranges, _probes(config, model, data))
    return Result(output=output, report={"method": "static", **report})


def _probes(config: Config, model: ONNXModule, data: Dataset | None) -> tuple[Probe, ...]:
    """Read the samples that choices are tried on, where there is a choice."""
    from forge_pipeline.data.fitting import input_specs
    from forge_pipeline.quantization.calibration.probes import Keeper
    from forge_pipeline.quantization.limits import whole

    if not config.tries or data is None or config.data is None:
        return ()
    samples = data.samples(config.data, input_specs(whole(model, "quantize")), "calibration")
    keeper = Keeper(config.probe_mib << 20, samples.labels(), len(samples))
    for _ in keeper.watch(samples):
        pass
    return keeper.probes


def _dynamic(config: Config, model: ONNXModule, ranges: Ranges | None, data: Dataset | None) -> Result:
    from forge_pipeline.quantization.build import quantize_dynamically

    output, report = quantize_dynamically(config, model)
    return Result(output=output, report={"method": "dynamic", **report})


def _float16(config: Config, model: ONNXModule, ranges: Ranges | None, data: Dataset | None) -> Result:
    from forge_pipeline.quantization.build import convert_to_float16

    output, report = convert_to_float16(model)
    return Result(output=output, report={"method": "float16", **report})


def _weights(config: Config, model: ONNXModule, ranges: Ranges | None, data: Dataset | None) -> Result:
    from forge_pipeline.quantization.build import quantize_weights

    output, report = quantize_weights(config, model)
    return Result(output=output, report={"method": "weights", **report})


METHODS: Registry[Callable[[Config, ONNXModule, Ranges | None, Dataset | None], Result]] = Registry(
    "quantization method",
    {"none": _none, "static": _static, "dynamic": _dynamic, "float16": _float16, "weights": _weights},
)
__all__ = ["Config", "run"]
