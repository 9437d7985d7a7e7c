"""Inputs to verify with, generated from the declared types: ordinary values, extremes, signed zeros, tiny and large.

A sample is a function of (seed, index, input name, shape) alone. Sizes of open dimensions are found elsewhere
(``made_up``).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from forge_pipeline.ir.tensors import element_count

Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 1 << 26  # of one generated input
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
INTEGERS = (
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
NARROW = (TensorProto.INT8, TensorProto.UINT8)  # data, not indices: their whole range is fed


class Unsupported(Exception):  # noqa: N818 - an answer, not an error: the value is listed as not verified
    """An input of a type that no sample can be generated for."""


def dim_symbol(value: ValueInfoProto, index: int) -> str:
    """Return the symbol of a dimension; one that has none gets a symbol of its own."""
    return value.type.tensor_type.shape.dim[index].dim_param or f"{value.name}[{index}]"


def sample(
    inputs: list[ValueInfoProto],
    sizes: Mapping[str, int],
    *,
    seed: int,
    index: int,
    top: int,
    tops: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Array]:
    """Return sample number ``index``; integers that may be indices stay below ``top``, or below their own of ``tops``.

    Raises Unsupported.
    """
    fed = {}
    for value in inputs:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise Unsupported(f"input {value.name!r} has no tensor type with a shape")
        shape = tuple(
            int(dim.dim_value) if dim.HasField("dim_value") else sizes[dim_symbol(value, axis)]
            for axis, dim in enumerate(tensor.shape.dim)
        )
        if element_count(shape) > MAX_ELEMENTS:
            raise Unsupported(f"input {value.name!r} has {element_count(shape)} elements")
        random = np.random.default_rng([seed, index, zlib.crc32(value.name.encode())])
        made = values(tensor.elem_type, shape, random, index, tops.get(value.name, top), name=value.name)
        fed[value.name] = np.asarray(made)  # a scalar is no array where numpy returns it
    return fed


def values(
    elem_type: int, shape: tuple[int, ...], random: np.random.Generator, index: int, top: int, *, name: str
) -> Array:
    """Return an array of one element type; ``index`` chooses the kind of values, 0 the ordinary ones."""
    if elem_type in FLOATS:
        return _floats(shape, random, index).astype(helper.tensor_dtype_to_np_dtype(elem_type))
    if elem_type == TensorProto.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if elem_type in INTEGERS:
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        if elem_type in NARROW:
            info = np.iinfo(dtype)
            array = random.integers(info.min, int(info.max) + 1, shape)
            _sprinkle(array, [info.min, info.max, 0], random)
            return array.astype(dtype)
        return random.integers(0, top, shape).astype(dtype)
    if elem_type == TensorProto.STRING:
        return random.choice(np.array(["", "a", "b c", "é"], dtype=object), shape)
    raise Unsupported(f"input {name!r} is of type {TensorProto.DataType.Name(elem_type)}")


def _floats(shape: tuple[int, ...], random: np.random.Generator, index: int) -> Array:
    kind = index % 4
    array = random.standard_normal(shape)
    if kind == 1:  # magnitudes over many decades
        array *= 10.0 ** random.uniform(-6, 3, shape)
    elif kind == 2:  # values where operators change their mind
        array = random.choice([-1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, -3.0], shape)
    elif kind == 3:  # pixels, counts: positive, and large
        array = np.round(np.abs(array) * 100)
    if kind in (0, 1):
        _sprinkle(array, [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30], random)
    return np.asarray(array)


def _sprinkle(array: Any, special: list[Any], random: np.random.Generator) -> None:
    """Put each special value at one random place, where there is room beside the ordinary ones."""
    flat = np.asarray(array).reshape(-1)
    if flat.size >= 4 * len(special):
        flat[random.choice(flat.size, len(special), replace=False)] = special
