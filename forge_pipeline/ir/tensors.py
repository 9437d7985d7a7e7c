"""Element types of ONNX tensors, and the one byte form of a tensor's content."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from forge_pipeline.errors import ModelError

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.STRING: "string",
    TensorProto.BOOL: "bool",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    TensorProto.UINT4: "uint4",
    TensorProto.INT4: "int4",
    TensorProto.FLOAT4E2M1: "float4_e2m1fn",
    TensorProto.FLOAT8E8M0: "float8_e8m0fnu",
    TensorProto.UINT2: "uint2",
    TensorProto.INT2: "int2",
    TensorProto.FLOAT6E2M3: "float6_e2m3fn",
    TensorProto.FLOAT6E3M2: "float6_e3m2fn",
}

SMALL: frozenset[int] = frozenset(
    (
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
        *(TensorProto.FLOAT8E8M0, TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2, TensorProto.FLOAT4E2M1),
        *(TensorProto.UINT4, TensorProto.INT4, TensorProto.UINT2, TensorProto.INT2),
    )
)
"""Types that no machine computes with. In compiled code each element is a byte, which has the bits of the type."""

# The typed field that holds an element type when ``raw_data`` does not (onnx.proto, message TensorProto),
# and the little-endian type of one of its entries in ``raw_data``.
_TYPED: dict[int, tuple[str, str]] = {
    TensorProto.FLOAT: ("float_data", "<f4"),
    TensorProto.COMPLEX64: ("float_data", "<f4"),
    TensorProto.DOUBLE: ("double_data", "<f8"),
    TensorProto.COMPLEX128: ("double_data", "<f8"),
    TensorProto.INT64: ("int64_data", "<i8"),
    TensorProto.UINT32: ("uint64_data", "<u4"),
    TensorProto.UINT64: ("uint64_data", "<u8"),
    TensorProto.INT32: ("int32_data", "<i4"),
    TensorProto.INT16: ("int32_data", "<u2"),
    TensorProto.UINT16: ("int32_data", "<u2"),
    TensorProto.FLOAT16: ("int32_data", "<u2"),
    TensorProto.BFLOAT16: ("int32_data", "<u2"),
}

_BEYOND_MEMORY = 1 << 63

_BITS: dict[int, int] = {
    TensorProto.UINT2: 2,
    TensorProto.INT2: 2,
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.FLOAT6E2M3: 6,
    TensorProto.FLOAT6E3M2: 6,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT: 32,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.DOUBLE: 64,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
}  # every other type takes one byte


def dtype_name(elem_type: int, *, where: str) -> str:
    """Return the name that numpy or ml_dtypes gives an ONNX element type. Raises ModelError."""
    if elem_type in DTYPES:
        return DTYPES[elem_type]
    raise ModelError(where, "a tensor of a known element type", f"type {elem_type}", "export the model again")


def stored_name(elem_type: int) -> str:
    """Return how compiled code holds an element type, as numpy and TVM name it."""
    return "uint8" if elem_type in SMALL else DTYPES[elem_type]


def element_count(dims: Sequence[int]) -> int:
    """Return the product of ``dims``, or a part of it that is already more than any memory holds."""
    if 0 in dims:
        return 0
    count = 1
    for dim in dims:
        count *= dim
        if count > _BEYOND_MEMORY:
            break
    return count


def bit_width(elem_type: int) -> int:
    """Return how many bits one element takes."""
    return _BITS.get(elem_type, 8)


def byte_count(tensor: TensorProto) -> int:
    """Return how long the tensor's content is as ``raw_data``, from its type and shape alone."""
    return (element_count(tensor.dims) * bit_width(tensor.data_type) + 7) // 8
