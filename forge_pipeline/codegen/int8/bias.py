"""The bias of a product or convolution of bytes: in int32 where it has their unit, else added to results in float."""

from __future__ import annotations

from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from forge_pipeline.codegen.layout.affine import SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Value
from forge_pipeline.codegen.layout.quantized_values import IntegerWeight


class Sums(Protocol):
    """Sums of a product or a convolution whose results are deferred: dataclasses, with a ``float_bias``."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def bias(self) -> Array:
        """What int32 sums start at."""

    @property
    def scale(self) -> Array:
        """The unit of the sums, one for each channel."""

    @property
    def dynamic(self) -> object | None:
        """The scale of activations that is measured when the model runs."""


Deferred = TypeVar("Deferred", bound=Sums)


def with_constant(deferred: Deferred, term: Value) -> Deferred:
    """Return sums that start at a constant for each channel, if they have its unit; else it is added to results."""
    exact = _integer_bias(term, deferred.scale) if deferred.dynamic is None else None
    if exact is not None and not deferred.bias.any():
        return replace(deferred, bias=exact)
    return replace(deferred, float_bias=np.asarray(term.constant).reshape(-1))


def _integer_bias(term: Value, scale: Array) -> Array | None:
    """Return a constant in units of ``scale``, if it is stored so and int32 sums have room for it."""
    if not isinstance(term, IntegerWeight) or abs(term.integers).max(initial=0) >= SUM_LIMIT:
        return None
    if not np.allclose(term.scale, scale, rtol=1e-5, atol=0):
        return None
    return np.broadcast_to(term.integers.reshape(-1), scale.shape).astype(np.int64)
