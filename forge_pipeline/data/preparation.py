"""How stored samples become a model's inputs, and which of them calibrate: conf/data/*.yaml without its paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forge_pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """From a decoded picture to a model's pixels, in this order.

    ``resize``: length of the shorter side in pixels (bilinear); ``crop``: side of the centred square kept;
    ``mean`` and ``std``: per channel, after `Preparation.scale` and `offset`.
    """

    resize: int | None
    crop: int | None
    color: Literal["rgb", "bgr", "gray"]
    layout: Literal["NCHW", "NHWC"]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """conf/data/*.yaml without its paths.

    Float inputs receive ``sample * scale + offset``; integer inputs take the stored integers. The first
    ``calibration_samples`` samples (with ``shuffle``: as many drawn by ``seed``) calibrate, the others evaluate.
    """

    calibration_samples: int
    shuffle: bool
    seed: int
    scale: float
    offset: float
    image: Image | None

    def __post_init__(self) -> None:
        if self.calibration_samples < 1:
            raise ConfigError(
                "data.calibration_samples", "a count of at least 1", str(self.calibration_samples), "try 128"
            )
        if self.image is not None and (0.0 in self.image.std or len(self.image.mean) != len(self.image.std)):
            raise ConfigError(
                "data.image.std",
                "one non-zero value for each in `mean`",
                str(list(self.image.std)),
                "give both per channel",
            )
