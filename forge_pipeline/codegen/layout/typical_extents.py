"""What open extents typically are, for those who choose between algorithms: an image's, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import tvm
from tvm import tirx

from forge_pipeline.ir.sizes.expression import Overgrown, Whole, evaluate

IMAGES: Final = (224, 640)
"""Heights and widths of images that classifiers and detectors are given."""

IMAGE_RANK: Final = 4
"""Batch, channels, height and width."""

Typical: TypeAlias = Mapping[str, tuple[int, ...]]
"""For extents by name, one size for each of IMAGES."""

UNKNOWN: Final[Typical] = MappingProxyType({})
"""What is known of a graph whose sizes nobody has looked at."""


def typical_extents(module: tvm.IRModule, computed: Sequence[tuple[str, Whole]]) -> Typical:
    """Return what the heights and widths of inputs are, and those extents that are ``computed`` from them alone."""
    shapes = [list(getattr(getattr(each.ty, "shape", None), "values", ())) for each in module["main"].params]
    images = [shape[2:] for shape in shapes if len(shape) == IMAGE_RANK]
    sides = {side.name for image in images for side in image if isinstance(side, tirx.Var)}
    found: dict[str, tuple[int, ...]] = dict.fromkeys(sides, IMAGES)
    for name, size in computed:
        try:
            found[name] = tuple(evaluate(size, dict.fromkeys(sides, image)) for image in IMAGES)
        except (KeyError, Overgrown):
            continue  # it hangs on something else, or there is no such image
    return {name: sizes for name, sizes in found.items() if min(sizes) > 0}
