"""What quantization can be asked for: conf/quantize/*.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forge_pipeline.errors import ConfigError

Method = Literal["auto", "minmax", "average", "percentile", "entropy", "mse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/quantize/*.yaml.

    ``reduce_range``: 7-bit weights, for instructions that add pairs of products in 16 saturating bits;
    ``percentile``: the share of values, in percent, that the method of that name keeps; ``keep_float``: names of
    layers that stay in float; ``improve``: accuracy tools, each kept only where it helps on the calibration samples;
    ``max_drop``: the loss of top-1, in percentage points on the calibration samples, that is bought off with as many
    layers in float as it takes; ``probe_mib``: how much of these samples all of that is tried on, in MiB (one at
    least); ``weight_bits`` and ``block_size``: for method `weights`, the integers of a matrix
    product's weights and how many input channels share a scale; ``block_activations``: whether what is multiplied by
    them stays as it is, or is rounded to int8 as the model runs, with a scale for as many channels of a row.
    """

    method: Literal["none", "static", "dynamic", "float16", "weights"]
    activation_dtype: Literal["uint8", "int8", "uint16", "int16"]
    kernel_dtype: Literal["int8", "uint8"]
    bias_dtype: Literal["int32", "float32"]
    per_channel: bool
    symmetric: bool
    reduce_range: bool
    calib_method: Method
    percentile: float
    keep_float: tuple[str, ...]
    improve: tuple[Literal["split", "equalize", "round_weights", "correct_bias"], ...]
    max_drop: float | None
    probe_mib: int
    weight_bits: Literal[4, 8]
    block_size: int
    block_activations: Literal["float32", "int8"]

    def __post_init__(self) -> None:
        if not 50.0 < self.percentile <= 100.0:
            raise ConfigError(
                "quantize.percentile", "a share in percent, over 50 and up to 100", f"{self.percentile:g}", "try 99.999"
            )
        if self.max_drop is not None and not 0.0 <= self.max_drop <= 100.0:
            raise ConfigError(
                "quantize.max_drop", "null, or percentage points from 0 to 100", f"{self.max_drop:g}", "try 0.5"
            )
        if self.probe_mib < 0:
            raise ConfigError("quantize.probe_mib", "a size in MiB, 0 or more", str(self.probe_mib), "try 32")
        if self.block_size < 16 or self.block_size & (self.block_size - 1):
            raise ConfigError(
                "quantize.block_size", "a power of two of at least 16", str(self.block_size), "try 32"
            )  # what ONNX Runtime has kernels for

    @property
    def tries(self) -> bool:
        """True where static quantization has choices to make, each tried on samples."""
        return bool(self.improve) or self.max_drop is not None or self.calib_method == "auto"
