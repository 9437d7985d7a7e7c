"""What is known of one value: its element type, its shape, and its elements where it is made of sizes."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.real import Real

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = tuple[Whole, ...]
Element: TypeAlias = "Whole | Real"

MOST: Final = 4096
"""Elements of the largest tensor whose contents are tracked: what is larger is data, no size."""


class Known:
    """What is known of a tensor, or of a sequence of tensors. Never changed.

    ``dtype`` is ONNX's number of the element type, 0 where it is not known. ``shape`` is None where the rank is not
    known. ``items`` are the tensors of a sequence of known length; ``element`` is what is known of all of them.
    """

    __slots__ = ("_constant", "_contents", "dtype", "element", "is_sequence", "items", "shape")

    def __init__(
        self,
        dtype: int,
        shape: Shape | None,
        contents: Array | None = None,
        *,
        constant: Array | None = None,
        items: tuple[Known, ...] | None = None,
        element: Known | None = None,
    ) -> None:
        self.dtype, self.shape, self.items, self.element = dtype, shape, items, element
        self.is_sequence = items is not None or element is not None
        self._contents, self._constant = contents, constant

    def __repr__(self) -> str:
        return f"Known({self.dtype}, {self.shape}, {self.contents!r})"

    @property
    def contents(self) -> Array | None:
        """The elements as an object array of whole numbers, sizes and reals (floats as Python's), None if unknown."""
        if self._contents is None and self._constant is not None and self._constant.dtype.kind in "biuf":
            self._contents = self._constant.astype(object)
            if self._constant.dtype.kind == "b":
                self._contents = self._constant.astype(np.int64).astype(object)
        return self._contents

    @property
    def constant(self) -> Array | None:
        """The elements as an array of the element type, None where one of them depends on an extent."""
        if self._constant is None and self._contents is not None:
            flat = self._contents.reshape(-1).tolist()
            if all(isinstance(entry, (int, float)) for entry in flat):
                self._constant = np.array(flat, helper.tensor_dtype_to_np_dtype(self.dtype)).reshape(
                    self._contents.shape
                )
        return self._constant

    @property
    def is_constant(self) -> bool:
        """Whether all elements are known numbers; whether those of a size are is not asked for here."""
        return self._constant is not None or self.constant is not None

    @property
    def rank(self) -> int | None:
        """The number of axes, None where it is not known."""
        return None if self.shape is None else len(self.shape)


UNKNOWN: Final = Known(0, None)


def of_array(array: Array, dtype: int | None = None) -> Known:
    """Return a constant."""
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype) if dtype is None else dtype
    return Known(dtype, tuple(map(int, array.shape)), constant=array if array.size <= MOST else None)


def of_sizes(sizes: Shape, dtype: int = TensorProto.INT64) -> Known:
    """Return a vector of sizes."""
    contents = np.empty(len(sizes), object)
    contents[:] = sizes
    return Known(dtype, (len(sizes),), contents)
