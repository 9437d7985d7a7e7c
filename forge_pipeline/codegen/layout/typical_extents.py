"""What open extents typically are, for those who choose between algorithms: an image's, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import tvm
from tvm import tirx

from forge_pipeline.ir.sizes.expression import Overgrown, Whole, evaluate

IMAGES: Final = (224, 640)
"""Heights and widths of images that classifiers and detectors are given."""

IMAGE_RANK: Final = 4

Typical: TypeAlias = Mapping[str, tuple[int, ...]]
"""For extents by name, one size for each of IMAGES."""


def typical_extents(module: tvm.IRModule, computed: Sequence[tuple[str, Whole]]) -> Typical:
    """Return what the heights and widths of inputs are, and those extents that are ``computed`` from them alone."""
    shapes = [getattr(getattr(parameter.ty, "shape", None), "values", ()) for parameter in module["main"].params]
    sides = {side.name for shape in shapes if len(shape) == IMAGE_RANK for side in shape[2:] if _is_open(side)}
    found: dict[str, tuple[int, ...]] = dict.fromkeys(sides, IMAGES)
    for name, size in computed:
        try:
            found[name] = tuple(evaluate(size, dict.fromkeys(sides, image)) for image in IMAGES)
        except (KeyError, Overgrown):
            continue  # it hangs on something else, or there is no such image
    return {name: sizes for name, sizes in found.items() if min(sizes) > 0}


def _is_open(extent: Any) -> bool:
    return isinstance(extent, tirx.Var)
