"""Inputs that the user fixes: each becomes a constant, and what it alone decides is folded away behind it.

So a flag (`use_cache_branch`, `deterministic`) or a rate of samples is said once, when the model is built, and the
branches that it rules out are not compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.ir.values import fed

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto, ValueInfoProto

Values = Mapping[str, Any]
"""What a user says of inputs: a number or a flag, which stands for every element, or nested lists of them."""

WHERE: Final = "model.values"
MOST: Final = 1 << 20
"""Elements of a value: what is larger is a weight, and belongs into the model's file."""


def with_values(model: ModelProto, values: Values) -> ModelProto:
    """Return ``model`` with these inputs as constants of their element types; itself where there are none.

    Raises ConfigError for a name that no input has, and for a value that the input cannot hold.
    """
    if not values:
        return model
    inputs = {value.name: value for value in model.graph.input} | {value.name: value for value in fed(model.graph)}
    for name in values:
        if name not in inputs:
            raise ConfigError(
                where=f"{WHERE}.{name}",
                expected=f"an input of the model: {', '.join(inputs)}",
                found=f"{name!r}",
                fix=f"{did_you_mean(name, list(inputs))}`forge-pipeline inspect` shows the inputs",
            )
    constants = [_constant(inputs[name], value) for name, value in values.items()]
    changed = type(model)()
    changed.CopyFrom(model)
    for kept, given in ((changed.graph.input, model.graph.input), (changed.graph.initializer, model.graph.initializer)):
        del kept[:]
        kept.extend(item for item in given if item.name not in values)
    changed.graph.initializer.extend(constants)
    return changed


def _constant(value: ValueInfoProto, given: Any) -> TensorProto:
    from onnx import helper, numpy_helper

    kind = value.type.tensor_type
    found = np.array(given)
    try:
        array = found.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        is_held = found.dtype.kind in "bif" and _holds(array, found)
    except (KeyError, TypeError, ValueError):
        is_held = False
    if not is_held:
        raise _misfit(value, f"numbers of its element type, {_type_name(kind.elem_type)}", given)
    if array.size > MOST:
        raise _misfit(value, f"at most {MOST:,} elements", given)
    extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    if array.ndim == 0 and None not in extents:
        array = np.full([extent or 0 for extent in extents], array, array.dtype)
    pairs = zip(extents, array.shape, strict=False)
    if array.ndim != len(extents) or any(extent not in (None, size) for extent, size in pairs):
        shape = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        raise _misfit(value, f"an array of its shape, {shape}", given)
    return numpy_helper.from_array(array, value.name)


def _holds(array: np.ndarray, given: np.ndarray) -> bool:
    """Return whether integers and flags are as they were given, and what was finite is."""
    if array.dtype.kind in "biu":
        return bool((array.astype(np.float64) == given).all())
    return bool((np.isfinite(array.astype(np.float64)) == np.isfinite(given)).all())


def _type_name(elem_type: int) -> str:
    from forge_pipeline.ir.tensors import DTYPES

    return DTYPES.get(elem_type, "one that numbers are not of")


def _misfit(value: ValueInfoProto, expected: str, given: Any) -> ConfigError:
    return ConfigError(f"{WHERE}.{value.name}", expected, str(given)[:100], "correct the value, or leave it an input")
