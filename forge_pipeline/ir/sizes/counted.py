"""Values with as many rows as a model finds of something: an extent that data alone decides."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.sizes.analysis import NOTHING, Sizes, analyse
from forge_pipeline.ir.sizes.polynomial import names


def counted_axes(model: ModelProto) -> Mapping[str, int]:
    """Return the axis of each output whose extent data decides, for those that have one such axis."""
    sizes = sizes_of(model)
    found = {output.name: axes_of(sizes, output.name) for output in model.graph.output}
    return {name: axes[0] for name, axes in found.items() if axes and len(axes) == 1}


def sizes_of(model: ModelProto) -> Sizes:
    """Return what is known of a model's sizes; nothing where two of them cannot agree."""
    try:
        return analyse(model)
    except ModelError:
        return NOTHING


def axes_of(sizes: Sizes, name: str) -> tuple[int, ...] | None:
    """Return the axes of a value whose extents data decides, None where its rank is not known."""
    shape = sizes.shape(name)
    if shape is None:
        return None
    return tuple(axis for axis, extent in enumerate(shape) if names(extent) & sizes.bounds_of_data.keys())
