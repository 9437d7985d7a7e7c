"""Operators on vectors that TVM's front end lacks or refuses, by element-wise ones: LpNormalization and OneHot."""

from __future__ import annotations

from typing import Any


def convert_lp_normalization(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Divide by the sum of magnitudes (p = 1) or the Euclidean length (p = 2) along an axis; a null vector stays."""
    from tvm import relax
    from tvm.relax import op

    (x,) = inputs[:1]
    axis, p = attributes.get("axis", -1), attributes.get("p", 2)
    parts = builder.normalize(op.abs(x) if p == 1 else op.multiply(x, x))
    total = builder.normalize(op.sum(parts, axis=[axis], keepdims=True))
    length = total if p == 1 else builder.normalize(op.sqrt(total))
    zero = relax.const(0, str(x.ty.dtype))
    is_null = builder.normalize(op.equal(length, zero))
    one = relax.const(1, str(x.ty.dtype))
    return op.divide(x, builder.normalize(op.where(is_null, one, length)))


def convert_one_hot(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Compare indices (of any type, negative ones from the end) with 0 to depth - 1; TVM takes few types of each.

    Raises NotImplementedError for a depth that is computed: the shape of the result would not be known.
    """
    import numpy as np
    from tvm import relax
    from tvm.ir import GenericConst
    from tvm.relax import op

    indices, depth, values = inputs[:3]
    if not isinstance(depth, GenericConst):
        raise NotImplementedError("a depth that is computed")
    size, rank = int(depth.value.numpy().reshape(-1)[0]), int(indices.ty.ndim)
    axis = attributes.get("axis", -1) % (rank + 1)
    places = builder.normalize(op.astype(indices, "int64"))
    from_end = builder.normalize(op.add(places, relax.const(size, "int64")))
    is_negative = builder.normalize(op.less(places, relax.const(0, "int64")))
    places = builder.normalize(op.where(is_negative, from_end, places))
    counted = relax.const(np.arange(size).reshape([-1] + [1] * (rank - axis)), "int64")
    is_here = builder.normalize(op.equal(builder.normalize(op.expand_dims(places, axis)), counted))
    off, on = (builder.normalize(op.take(values, relax.const(which, "int64"), axis=0)) for which in (0, 1))
    return op.where(is_here, on, off)
