"""model, data -> ranges: what the model's activations look like on the calibration samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.stages.contract import Rest, Result, Slice

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/calibrate/*.yaml, and the part of conf/data/*.yaml that says how samples become inputs.

    ``histogram_values``: how many values of a tensor each sample adds to its histogram at most; minimum and maximum
    always see every value.
    """

    histogram_values: int
    data: Preparation

    def __post_init__(self) -> None:
        if self.histogram_values < 1:
            raise ConfigError(
                "calibrate.histogram_values", "a count of at least 1", str(self.histogram_values), "try 16384"
            )


def sliced(section: Slice, rest: Rest) -> Slice:
    """Add how samples become inputs."""
    return {**section, "data": rest.preparation}


def run(
    config: Config, model: ONNXModule, data: Dataset | None, progress: Callable[[int, int], None] | None = None
) -> Result:
    """Calibrate in one pass; the result depends on the set of samples alone. Raises DataError and ModelError."""
    from forge_pipeline.data.fitting import input_specs
    from forge_pipeline.quantization.calibration.observe import calibrate
    from forge_pipeline.quantization.limits import whole

    if data is None:
        raise DataError(
            "data.path", "calibration data for static quantization", "null",
            "give data.path=FILE.npz, or choose quantize=dynamic or quantize=none",
        )  # fmt: skip
    samples = data.samples(config.data, input_specs(whole(model, "calibrate")), "calibration")
    ranges = calibrate(model, samples, total=len(samples), histogram_values=config.histogram_values, progress=progress)
    tensors = {
        name: {"low": statistics.low, "high": statistics.high, "average": list(statistics.average)}
        for name, statistics in sorted(ranges.items())
    }
    return Result(output=ranges, report={"samples": ranges.samples, "tensors": tensors})
