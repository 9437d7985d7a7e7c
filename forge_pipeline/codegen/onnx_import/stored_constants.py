"""Constants that a model dequantizes, while they are still integers: the weights of recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Weights (directions, gates * hidden, columns): integers without zero point, and ``scale``, of the same rank, for
    all of them, for each direction, or for each row."""

    integers: Array
    scale: Array

    @classmethod
    def of(cls, builder: Any, value: Any) -> Stored | None:
        """Return what ``value`` is dequantized from; None for anything else, and for a scale for each column."""
        call = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.dequantize":
            return None
        if not all(isinstance(argument, GenericConst) for argument in call.args):
            return None
        integers, scale, zero = (np.asarray(argument.value.numpy()) for argument in call.args)
        axis = int(call.attrs.axis) % integers.ndim
        is_spread = max(scale.size, zero.size) > 1
        if integers.dtype.itemsize != 1 or integers.dtype.kind not in "iu" or (is_spread and axis == integers.ndim - 1):
            return None
        spread = [1] * integers.ndim
        spread[axis] = -1
        scale, zero = (part.reshape(spread if part.size > 1 else [1] * integers.ndim) for part in (scale, zero))
        return cls(integers=integers.astype(np.int16) - zero.astype(np.int16), scale=scale.astype(np.float32))

    @property
    def fits_int8(self) -> bool:
        """Whether every integer is one of int8."""
        return bool((self.integers == self.integers.astype(np.int8)).all())

    def columns_of(self, direction: int) -> Any:
        """Return one direction, transposed, as what a DequantizeLinear with a scale for each column gives."""
        integers = np.ascontiguousarray(self.integers[direction].T.astype(np.int32))
        scale = np.ascontiguousarray(np.broadcast_to(self.scale, (*self.integers.shape[:2], 1))[direction, :, 0])
        zeros = relax.const(np.zeros(scale.shape, np.int32), "int32")
        return relax.op.dequantize(
            relax.const(integers, "int32"), relax.const(scale, "float32"), zeros, axis=1, out_dtype="float32"
        )
