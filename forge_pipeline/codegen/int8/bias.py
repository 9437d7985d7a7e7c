"""TODO(forge_pipeline/codegen/int8/bias.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from forge_pipeline.codegen.int8.conv.match import Convolution
from forge_pipeline.codegen.layout.affine import SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Value
from forge_pipeline.codegen.layout.quantized_values import IntegerWeight

if TYPE_CHECKING:
    from forge_pipeline.codegen.int8.ops.matmul import Product


Pending = TypeVar("Pending", "Convolution", "Product")
"""Sums that wait to be stored."""


def with_constant(pending: Pending, term: Value) -> Pending:
    """Return sums that start at a constant for each channel, if they have its unit; else it is added to results."""
    exact = _integer_bias(term, pending.scale) if pending.measured is None else None
    if exact is not None and not pending.bias.any():
        return replace(pending, bias=exact)
    return replace(pending, offset=np.asarray(term.constant).reshape(-1))


def _integer_bias(term: Value, scale: Array) -> Array | None:
    """Return a constant in units of ``scale``, if it is stored so and int32 sums have room for it."""
    if not isinstance(term, IntegerWeight) or abs(term.integers).max(initial=0) >= SUM_LIMIT:
        return None
    if not np.allclose(term.scale, scale, rtol=1e-5, atol=0):
        return None
    return np.broadcast_to(term.integers.reshape(-1), scale.shape).astype(np.int64)
