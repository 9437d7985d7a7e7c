"""Element types of 8 bits and fewer that no machine computes with: one byte for each element, wherever they are.

A byte holds the bits of the type, the others of it are 0, as ml_dtypes stores them. Such values are moved as bytes.
To be computed with they are decoded, exactly, to float32 or int32; what is computed is encoded, rounded once.
Sources: ONNX's Cast and QuantizeLinear; OCP 8-bit Floating Point (OFP8) 1.0 and Microscaling Formats (MX) 1.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx

if TYPE_CHECKING:
    from forge_pipeline.codegen.onnx_import.node import NodeImport

STORAGE: Final = "uint8"
LAYOUTS: Final = {"float32": ("uint32", 23, 127), "float64": ("uint64", 52, 1023)}
"""IEEE 754: the integers as wide as a float, the bits of its fraction, and the bias of its exponent.

Unsigned, as TVM takes others for indices, and widens them.
"""
MOVED: Final = frozenset(
    ("Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements",
     "GatherND", "Identity", "If", "OptionalGetElement", "Reshape", "Shape", "Size", "Slice", "SpaceToDepth", "Split",
     "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators that look at no element of the type."""
CONVERTED: Final = frozenset(("Cast", "CastLike", "DequantizeLinear", "QuantizeLinear"))
"""Operators that read and write such elements as numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallInteger:
    """Two's complement, or unsigned, in the low ``bits`` of a byte."""

    name: str
    bits: int
    is_signed: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number."""
        return (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) if self.is_signed else (0, (1 << self.bits) - 1)

    @property
    def wide(self) -> str:
        """The integers of 8 bits that hold the same numbers."""
        return "int8" if self.is_signed else "uint8"

    def decode(self, node: NodeImport, index: int) -> relax.Expr:
        """Emit an operand's numbers as int32."""
        known = node.constant(index)
        if known is not None:
            return node.const(known.astype(np.int32), "int32")

        flip = tirx.const(1 << (self.bits - 1) if self.is_signed else 0, "int32")
        mask = tirx.const((1 << self.bits) - 1, "int32")

        def numbers(data: Any) -> Any:
            return te.compute(
                data.shape,
                lambda *at: tirx.bitwise_xor(tirx.bitwise_and(data(*at).astype("int32"), mask), flip) - flip,
                name="decoded",
            )

        return node.kernel(numbers, node.input(index), name=f"decode_{self.name}")

    def encode(self, node: NodeImport, value: relax.Expr) -> relax.Expr:
        """Emit integers as bytes: higher bits are lost, as ONNX has it."""
        mask = tirx.const((1 << self.bits) - 1, "int32")

        def stored(data: Any) -> Any:
            return te.compute(
                data.shape,
                lambda *at: tirx.bitwise_and(data(*at).astype("int32"), mask).astype(STORAGE),
                name="encoded",
            )

        return node.kernel(stored, value, name=f"encode_{self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFloat:
    """Sign, exponent, and ``fraction`` bits of a fraction, in the low ``bits`` of a byte.

    ``least`` is the exponent of the least normal number. ``greatest`` is the byte of ``largest``, the largest finite
    number; ``nan`` and ``infinity`` are the bytes of what those become, other numbers where a type has neither.
    """

    name: str
    bits: int
    fraction: int
    least: int
    largest: float
    greatest: int
    nan: int
    infinity: int

    @classmethod
    def of(cls, name: str) -> SmallFloat:
        """Return what ml_dtypes says of one of its types."""
        dtype: Any = getattr(ml_dtypes, name)
        about = ml_dtypes.finfo(dtype)
        values = np.array([float(about.max), np.nan, np.inf], np.float32)
        greatest, nan, infinity = (int(byte) for byte in values.astype(dtype).view(np.uint8))
        return cls(
            name=name,
            bits=int(about.bits),
            fraction=int(about.nmant),
            least=int(about.minexp),
            largest=float(about.max),
            greatest=greatest,
            nan=nan,
            infinity=infinity,
        )

    @property
    def is_power(self) -> bool:
        """Whether it is E8M0: powers of two, with neither sign nor zero."""
        return self.fraction == 0

    def decode(self, node: NodeImport, index: int) -> relax.Expr:
        """Emit an operand's numbers as float32, which has each of them. Weights are so when the model is compiled."""
        known = node.constant(index)
        if known is not None:
            return node.const(known.astype(np.float32), "float32")

        codes = np.arange(1 << self.bits, dtype=np.uint8)
        numbers = node.const(codes.view(getattr(ml_dtypes, self.name)).astype(np.float32), "float32")
        mask = tirx.const((1 << self.bits) - 1, "int32")

        def read(data: Any, table: Any) -> Any:
            return te.compute(
                data.shape, lambda *at: table(tirx.bitwise_and(data(*at).astype("int32"), mask)), name="decoded"
            )

        return node.kernel(read, node.input(index), numbers, name=f"decode_{self.name}")

    def encode(self, node: NodeImport, value: relax.Expr, *, saturate: bool = True, mode: str = "up") -> relax.Expr:
        """Emit floats of 32 or 64 bits as bytes, rounded to nearest, ties to even.

        With ``saturate``, what does not fit is the largest number; without, an infinity, or NaN where there is none.
        ``mode`` is how powers of two are rounded: `up`, `down`, or to `nearest`, ties up. They ignore signs.
        """
        dtype = str(value.ty.dtype)
        byte = self._power(dtype, saturate, mode) if self.is_power else self._byte(dtype, saturate)

        def stored(data: Any) -> Any:
            return te.compute(data.shape, lambda *at: byte(data(*at)).astype(STORAGE), name="encoded")

        return node.kernel(stored, value, name=f"encode_{self.name}")

    def _byte(self, dtype: str, saturate: bool) -> Callable[[Any], Any]:
        """Return the expression of the byte of a float.

        The codes of numbers above 0 follow each other as the numbers do: that of ``n 2^(e - fraction)`` is
        ``(e - least) 2^fraction + n``, where ``e`` is its exponent, or ``least`` if that is more.
        """
        sign, beyond = 1 << (self.bits - 1), self.greatest if saturate else self.infinity

        def element(x: Any) -> Any:
            steps, exponent = self._scaled(tirx.abs(x), dtype)
            code = exponent * (1 << self.fraction) + tirx.nearbyint(steps).astype("int32")
            code = tirx.Select(code > self.greatest, _int32(beyond), code)
            if self.name.endswith("uz"):  # no zero below 0: its byte is NaN
                is_negative = tirx.all(x < tirx.const(0, dtype), code > 0)
            else:
                is_negative = _has_sign(x, dtype)
            code = tirx.Select(_is_nan(x, dtype), _int32(self.nan), code)
            return tirx.bitwise_or(code, tirx.Select(is_negative, _int32(sign), _int32(0)))

        return element

    def _power(self, dtype: str, saturate: bool, mode: str) -> Callable[[Any], Any]:
        """Return the expression of the byte of a float, as a power of two: its exponent, from ``least``."""
        whole = {"up": tirx.ceil, "down": tirx.floor, "nearest": lambda n: tirx.floor(n + tirx.const(0.5, dtype))}
        if mode not in whole:
            raise NotImplementedError(f"round_mode {mode!r}")
        smallest, largest = (tirx.const(limit, dtype) for limit in (2.0**self.least, self.largest))

        def element(x: Any) -> Any:
            magnitude = tirx.abs(x)
            steps, exponent = self._scaled(magnitude, dtype)
            code = exponent + whole[mode](steps).astype("int32") - 1
            code = tirx.max(tirx.min(code, _int32(self.greatest)), _int32(0))
            is_none = _is_nan(x, dtype)
            if not saturate:
                is_none = tirx.any(is_none, magnitude < smallest, magnitude > largest)
            return tirx.Select(is_none, _int32(self.nan), code)

        return element

    def _scaled(self, magnitude: Any, dtype: str) -> tuple[Any, Any]:
        """Return ``n`` before it is rounded, and ``e - least``: both are exact, as is the product by a power of two."""
        integer, width, bias = LAYOUTS[dtype]
        held = tirx.min(magnitude, tirx.const(1.5 * self.largest, dtype))
        exponent = tirx.reinterpret(integer, held) >> tirx.const(width, integer)
        low, high = (tirx.const(limit, integer) for limit in (self.least + bias, 2 * bias + self.fraction - 1))
        exponent = tirx.max(tirx.min(exponent, high), low)  # the power of two is a normal number
        place = tirx.const(width, integer)
        factor = tirx.reinterpret(dtype, (tirx.const(2 * bias + self.fraction, integer) - exponent) << place)
        return held * factor, (exponent - low).astype("int32")


def _has_sign(x: Any, dtype: str) -> Any:
    """Return whether the bit of the sign is set, as it is of -0."""
    integer, _, _ = LAYOUTS[dtype]
    return tirx.reinterpret(integer, x) >= tirx.const(1 << (8 * np.dtype(dtype).itemsize - 1), integer)


def _is_nan(x: Any, dtype: str) -> Any:
    """Return whether x is NaN, by its bits: TVM takes a number to equal itself."""
    integer, _, _ = LAYOUTS[dtype]
    bits = tirx.bitwise_and(tirx.reinterpret(integer, x), tirx.const(np.iinfo(integer).max >> 1, integer))
    return bits > tirx.const(int(np.array(np.inf, dtype).view(integer)), integer)


def _int32(number: int) -> Any:
    return tirx.const(number, "int32")


Small = SmallInteger | SmallFloat

INTEGERS: Final[Mapping[int, SmallInteger]] = {
    number: SmallInteger(name=name, bits=bits, is_signed=is_signed)
    for number, name, bits, is_signed in (
        (21, "uint4", 4, False),
        (22, "int4", 4, True),
        (25, "uint2", 2, False),
        (26, "int2", 2, True),
    )
}
"""By TensorProto.DataType."""
FLOATS: Final[Mapping[int, str]] = {
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    27: "float6_e2m3fn",
    28: "float6_e3m2fn",
}
"""Names in ml_dtypes by TensorProto.DataType."""


@functools.cache
def small_type(number: int) -> Small | None:
    """Return a small type by TensorProto.DataType; None for another type."""
    return SmallFloat.of(FLOATS[number]) if number in FLOATS else INTEGERS.get(number)
