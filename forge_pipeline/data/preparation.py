"""How stored samples become a model's inputs, and which of them calibrate: conf/data/*.yaml without its paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forge_pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """From a decoded picture to a model's pixels, in this order.

    ``resize``: length of the shorter side in pixels, or (height, width) whatever that does to proportions (bilinear);
    ``crop``: side of the centred square kept, or (height, width); ``mean`` and ``std``: per channel, after
    `Preparation.scale` and `offset`; ``dtype``: the type of the model's input that all this is meant for.
    """

    resize: int | tuple[int, ...] | None
    crop: int | tuple[int, ...] | None
    color: Literal["rgb", "bgr", "gray"]
    layout: Literal["NCHW", "NHWC"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str | None

    def __post_init__(self) -> None:
        for name, size in (("resize", self.resize), ("crop", self.crop)):
            if size is not None and not _is_size(size):
                raise ConfigError(
                    f"data.image.{name}", "null, a length in pixels, or [height, width]", str(size), "try 224"
                )
        channels = 1 if self.color == "gray" else 3
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise ConfigError(
                    where=f"data.image.{name}",
                    expected=f"{channels} value{'s' if channels > 1 else ''}, one for each channel of {self.color}",
                    found=str(list(values)),
                    fix="give one per channel",
                )
        if 0.0 in self.std:
            raise ConfigError("data.image.std", "values that are not zero", str(list(self.std)), "try 1.0")


def _is_size(size: int | tuple[int, ...]) -> bool:
    sides = (size, size) if isinstance(size, int) else size
    return len(sides) == 2 and min(sides) > 0


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
