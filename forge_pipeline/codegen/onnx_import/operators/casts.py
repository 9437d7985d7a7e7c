"""Casts: each element in another type, by its value or by its bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.elementwise import FLOATS
from forge_pipeline.codegen.onnx_import.scope import element_name
from forge_pipeline.codegen.onnx_import.small_types import SmallFloat, small_type

BETWEEN: Final = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), ("int32", 2.0**31 - 2.0**16)),
    **dict.fromkeys(("int32", "uint32", "uint64"), ("int64", 2.0**63 - 2.0**39)),
    "int64": ("int64", 2.0**63 - 2.0**39),
}
"""What floats become on their way to an integer, and the largest of it: its low bits, which stay, are 0."""
WIDE: Final = frozenset(("float64", "int32", "int64", "uint32", "uint64"))
"""What float32 would round before it is rounded again, to a small type."""


def _cast(node: NodeImport) -> Any:
    return _between(node, int(node.attributes["to"]))


def _cast_like(node: NodeImport) -> Any:
    return _between(node, node.known(1).dtype)


def _between(node: NodeImport, to: int) -> Any:
    """Return the operand as a type by ONNX's number; what has few bits is converted by way of float32 or int32."""
    number = node.known(0).dtype
    own, wanted = small_type(number), small_type(to)
    value = node.input(0) if own is None or number == to else own.decode(node, 0)
    if number == to:
        return value
    dtype = str(value.ty.dtype)
    if wanted is None:
        return _converted(node, value, dtype, element_name(to))
    if not isinstance(wanted, SmallFloat):
        return wanted.encode(node, node.emit(_converted(node, value, dtype, "int32")))
    wide = "float64" if dtype in WIDE else "float32"
    return wanted.encode(
        node,
        node.emit(_converted(node, value, dtype, wide)),
        saturate=bool(node.attributes.get("saturate", 1)),
        mode=node.text("round_mode", "up"),
    )


def _converted(node: NodeImport, value: Any, dtype: str, wanted: str) -> Any:
    """Return ``value`` in another element type.

    A float becomes an integer by one expression that names its operand once: two in a row, fused, would else be one
    that takes minutes to simplify. What ONNX leaves open is the same on every CPU: a number too large loses high bits,
    infinities and NaN become 0, but as int64 the largest, or least, number.
    """
    if dtype == wanted:
        return value
    if wanted == "bool":
        return op.not_equal(value, node.const(0, dtype))
    if dtype not in FLOATS or wanted not in BETWEEN:
        return op.astype(value, wanted)
    if dtype in ("float16", "bfloat16"):
        value, dtype = node.emit(op.astype(value, "float32")), "float32"
    between, largest = BETWEEN[wanted]
    if wanted == "int64" and dtype == "float64":
        largest = math.nextafter(2.0**63, 0.0)
    least = -(2.0 ** (int(between[3:]) - 1))
    number = node.emit(op.clip(value, least, largest))  # not Min and Max: of NaN it makes the bound
    if dtype == "float32" and wanted in ("int32", "uint32"):
        return node.kernel(partial(_low_bits, wanted), number, name="cast")
    steps = op.astype(number, between)
    return steps if wanted == between else op.astype(node.emit(steps), wanted)


def _low_bits(wanted: str, data: Any) -> Any:
    """Describe float32 as integers of 32 bits by arithmetic that vectors have, and that is exact.

    What is left by 2^32 may be more than 2^31, which no conversion takes: the upper and the lower half are converted.
    """
    whole, upper = 2.0**32, 2.0**16

    def scaled(x: Any, factor: float) -> Any:
        return x * tirx.const(factor, "float32")

    def element(*at: Any) -> Any:
        number = tirx.trunc(data(*at))
        rest = number - scaled(tirx.trunc(scaled(number, 1 / whole)), whole)
        high = tirx.floor(scaled(rest, 1 / upper))
        low = (rest - scaled(high, upper)).astype("int32")
        return ((high.astype("int32") << tirx.const(16, "int32")) + low).astype(wanted)

    return te.compute(data.shape, element, name="cast")


def _bit_cast(node: NodeImport) -> Any:
    """BitCast: the same bits, read as another type of that width."""
    own, wanted = node.dtype(), element_name(node.attributes["to"])
    if "bool" in (own, wanted):
        if not {own, wanted} <= {"bool", "uint8", "int8"}:
            raise NotImplementedError(f"{own} as {wanted}")
        return _converted(node, node.input(0), own, wanted)
    if np.dtype(own).itemsize != np.dtype(wanted).itemsize:
        raise NotImplementedError(f"{own} as {wanted}, which is of another width")
    if own == wanted:
        return node.input(0)
    if "float" not in own and "float" not in wanted:
        return op.astype(node.input(0), wanted)

    def read(data: Any) -> Any:
        return te.compute(data.shape, lambda *at: tirx.reinterpret(wanted, data(*at)), name="bits")

    return node.kernel(read, node.input(0), name="bit_cast")


CONVERTERS: Mapping[str, Converter] = {"BitCast": _bit_cast, "Cast": _cast, "CastLike": _cast_like}
