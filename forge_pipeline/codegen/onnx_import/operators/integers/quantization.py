"""Operators between floats and integers: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

Where Relax has the operator (a scale for all, or for each index of an axis) it is used, since the schedules of
quantized models recognise it. Scales for blocks of activations are kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.scope import element_name, element_type
from forge_pipeline.codegen.onnx_import.small_types import SmallFloat, small_type

Array = np.ndarray[Any, Any]

INTEGERS: Final = frozenset({"int8", "uint8", "int16", "uint16", "int32"})
"""What Relax quantizes to: integers of fewer bits are those of 8 with narrower limits."""
MEASURE: Final = "measure_range"
"""The name by which schedules know the kernel that finds the range of activations."""
DEQUANTIZE_BLOCKS: Final = "dequantize_blocks"
"""The name by which schedules know int8 activations with a scale for each of equal blocks of a row."""
LEVELS: Final = 255
BYTE: Final = 8


def _axis(node: NodeImport) -> int:
    """Return the axis of one scale for each index; of a vector it is the only one."""
    rank = node.rank()
    return 0 if rank <= 1 else int(node.attributes.get("axis", 1)) % rank


def _zero_point(node: NodeImport, dtype: str) -> Any:
    return _numbers(node, 2, dtype) if node.has(2) else node.const(0, dtype)


def _numbers(node: NodeImport, index: int, dtype: str) -> Any:
    """Return an operand as numbers of ``dtype``, where it is of a small type; else as it is."""
    small = small_type(node.known(index).dtype)
    if small is None:
        return node.input(index)
    known = node.constant(index)
    if known is not None:
        return node.const(known.astype(dtype), dtype)
    value = node.emit(small.decode(node, index))
    return value if str(value.ty.dtype) == dtype else node.emit(op.astype(value, dtype))


def _checked(*dtypes: str) -> None:
    for dtype in dtypes:
        if dtype not in INTEGERS:
            raise NotImplementedError(f"{dtype}, which has no arithmetic")


def _block(node: NodeImport) -> int:
    """Return how many numbers share a scale along the axis; 0 where there is one for all or for each index."""
    return int(node.attributes.get("block_size", 0)) if node.rank(1) == node.rank() > 0 else 0


def _quantize(node: NodeImport) -> Any:
    """``saturate(round(x / scale) + zero)``, halves to even."""
    number = node.result().dtype
    small = small_type(number)
    wide = "float32" if node.dtype() in ("int32", "float16", "bfloat16") else node.dtype()
    value, scale = (
        node.input(index) if node.dtype(index) == wide else node.emit(op.astype(node.input(index), wide))
        for index in range(2)
    )
    if isinstance(small, SmallFloat):
        return _quantize_to_floats(node, value, scale, small)
    dtype = element_name(number) if small is None else small.wide
    _checked(dtype)
    levels = _levels(node, value, scale, dtype)
    if small is None:
        return levels
    low, high = small.limits
    levels = op.minimum(node.emit(op.maximum(node.emit(levels), node.const(low, dtype))), node.const(high, dtype))
    return small.encode(node, node.emit(levels))


def _levels(node: NodeImport, value: Any, scale: Any, dtype: str) -> Any:
    """Return integers of ``dtype``."""
    if not _block(node):
        return op.quantize(value, scale, _zero_point(node, dtype), axis=_axis(node), out_dtype=dtype)
    zeros = (_numbers(node, 2, dtype),) if node.has(2) else ()
    return node.kernel(_in_blocks(node, dtype, is_quantized=True), value, scale, *zeros, name="quantize")


def _quantize_to_floats(node: NodeImport, value: Any, scale: Any, small: SmallFloat) -> Any:
    """``x / scale``, rounded once; the zero point of 8 bits can only be 0, that of fewer is added."""
    steps = node.emit(op.divide(value, _spread(node, scale)))
    if node.has(2) and small.bits < BYTE:
        steps = node.emit(op.add(steps, _spread(node, _zero_point(node, str(steps.ty.dtype)))))
    return small.encode(node, steps, saturate=bool(node.attributes.get("saturate", 1)))


def _dequantize_floats(node: NodeImport, wanted: str) -> Any:
    """``(x - zero) scale`` of floats of few bits."""
    wide = "float64" if wanted == "float64" else "float32"
    constants = [node.constant(index) for index in range(3) if node.has(index)]
    if all(array is not None for array in constants):  # products are made for weights that are constants
        number, scale, *zeros = (array.astype(wide) for array in constants if array is not None)
        for zero in zeros:
            number = number - _spread_constant(node, zero, number.shape)
        return node.const((number * _spread_constant(node, scale, number.shape)).astype(element_type(wanted)), wanted)
    value = _numbers(node, 0, wide)
    if node.has(2):
        value = node.emit(op.subtract(value, _spread(node, _zero_point(node, wide))))
    scale = node.input(1)
    scale = scale if node.dtype(1) == wide else node.emit(op.astype(scale, wide))
    found = node.emit(op.multiply(value, _spread(node, scale)))
    return found if wide == wanted else op.astype(found, wanted)


def _spread(node: NodeImport, factors: Any) -> Any:
    """Return scales, or zero points, in a shape that is broadcast to the first operand's."""
    axis, block = _axis(node), _block(node)
    if not block:
        extents = node.shape(1)
        is_one = extents in ((), (1,))
        return node.reshape(factors, () if is_one else (*[1] * axis, *extents, *[1] * (node.rank() - axis - 1)))

    def repeated(part: Any, *extents: Any) -> Any:
        def element(*at: Any) -> Any:
            return part(*(index // block if position == axis else index for position, index in enumerate(at)))

        return te.compute(extents, element, name="spread")

    return node.kernel(repeated, factors, sizes=node.shape(), name="spread")


def _dequantize(node: NodeImport) -> Any:
    """``(x - zero) scale``, in the scale's type."""
    small, wanted = small_type(node.known(0).dtype), element_name(node.result().dtype)
    if isinstance(small, SmallFloat):
        return _dequantize_floats(node, wanted)
    dtype = node.dtype() if small is None else small.wide
    _checked(dtype)
    scale = node.input(1)
    if not _block(node):
        zero = _zero_point(node, dtype)
        wide = "float32" if wanted in ("float16", "bfloat16") else wanted
        scale = scale if node.dtype(1) == wide else node.emit(op.astype(scale, wide))
        found = op.dequantize(_numbers(node, 0, dtype), scale, zero, axis=_axis(node), out_dtype=wide)
        return found if wide == wanted else op.astype(node.emit(found), wanted)
    constants = [node.constant(index) for index in range(3) if node.has(index)]
    if wanted == "float32" and all(array is not None for array in constants):
        integers, scales, *zero = (array for array in constants if array is not None)
        return _constant_in_blocks(node, [integers.astype(dtype), scales, *(array.astype(dtype) for array in zero)])
    zeros = (_numbers(node, 2, dtype),) if node.has(2) else ()
    template = _in_blocks(node, wanted, is_quantized=False)
    is_known = small is None and dtype == "int8" and wanted == "float32" and not zeros and _has_equal_blocks(node)
    name = DEQUANTIZE_BLOCKS if is_known else "dequantize"
    return node.kernel(template, _numbers(node, 0, dtype), scale, *zeros, name=name)


def _has_equal_blocks(node: NodeImport) -> bool:
    """Return whether the last axis is known, and consists of whole blocks."""
    length = node.shape()[-1]
    return _axis(node) == node.rank() - 1 and isinstance(length, int) and length % _block(node) == 0


def _spread_constant(node: NodeImport, factors: Array, shape: tuple[int, ...]) -> Array:
    """Do as ``_spread`` does, with constants, of which the first has this ``shape``."""
    axis, block = _axis(node), _block(node)
    if block:
        return np.repeat(factors, block, axis).take(range(shape[axis]), axis)
    return factors.reshape(() if factors.size == 1 else (-1, *[1] * (len(shape) - axis - 1)))


def _in_blocks(node: NodeImport, dtype: str, *, is_quantized: bool) -> Any:
    """Return the tensor expression of numbers that have a scale for each block of them."""
    axis, block = _axis(node), _block(node)

    def template(data: Any, scale: Any, *zeros: Any) -> Any:
        def element(*at: Any) -> Any:
            place = [index // block if position == axis else index for position, index in enumerate(at)]
            factor = scale(*place)
            zero = zeros[0](*place).astype("int32") if zeros else tirx.const(0, "int32")
            if not is_quantized:
                return (data(*at).astype("int32") - zero).astype(dtype) * factor.astype(dtype)
            low, high = (tirx.const(float(limit), scale.dtype) for limit in _limits(dtype))
            level = tirx.nearbyint(data(*at) / factor) + zero.astype(scale.dtype)
            return tirx.max(tirx.min(level, high), low).astype(dtype)

        return te.compute(data.shape, element, name="levels")

    return template


def _limits(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _constant_in_blocks(node: NodeImport, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Emit constants that are dequantized in blocks.

    Relax has one scale for each index of an axis, so blocks are laid side by side along one axis, and moved to
    where they belong after they are dequantized.
    """
    integers, scale, *zeros = arrays
    zero = zeros[0] if zeros else np.zeros(scale.shape, integers.dtype)
    axis, size = _axis(node), _block(node)
    integers, scale, zero = (np.moveaxis(array, axis, 0) for array in (integers, scale, zero))
    length, *rest = integers.shape
    block = math.gcd(length, size)  # the last block may be shorter than the others: parts of equal length have a scale
    parts = np.arange(length // block) * block // size
    side_by_side = integers.reshape(length // block, block, *rest).swapaxes(0, 1).reshape(block, -1)
    arrays = [side_by_side, scale[parts].ravel(), zero[parts].ravel()]
    constants = [node.const(np.ascontiguousarray(array), str(array.dtype)) for array in arrays]
    value = node.emit(op.dequantize(*constants, axis=1, out_dtype="float32"))
    value = node.reshape(value, (block, length // block, *rest))
    value = node.emit(op.permute_dims(value, (1, 0, *range(2, 2 + len(rest)))))
    value = node.reshape(value, (length, *rest))
    back = list(range(1, integers.ndim))
    back.insert(axis, 0)
    return value if axis == 0 else op.permute_dims(value, back)


def _dynamic(node: NodeImport) -> Any:
    """DynamicQuantizeLinear: bytes, scale and zero point; a tensor of zeros has the scale 1, as in ONNX Runtime."""
    found = node.kernel(_range, node.input(0), name=MEASURE)
    scale, zero = (node.part(found, index) for index in range(2))
    integers = op.quantize(node.input(0), scale, zero, axis=0, out_dtype="uint8")
    return [node.emit(integers), scale, zero]


def _range(values: Any) -> list[Any]:
    def extreme(reduce: Any) -> Any:
        axes = [te.reduce_axis((0, extent)) for extent in values.shape]
        return te.compute((), lambda: reduce(values(*axes), axis=axes) if axes else values())

    zero, levels = tirx.const(0, "float32"), tirx.const(LEVELS, "float32")
    least, greatest = extreme(te.min), extreme(te.max)
    low = te.compute((), lambda: tirx.min(least(), zero))
    high = te.compute((), lambda: tirx.max(greatest(), zero))
    scale = te.compute(
        (), lambda: tirx.Select(high() == low(), tirx.const(1, "float32"), (high() - low()) / levels), name="scale"
    )
    place = te.compute(
        (),
        lambda: tirx.nearbyint(tirx.max(tirx.min(zero - low() / scale(), levels), zero)).astype("uint8"),
        name="zero",
    )
    return [scale, place]


CONVERTERS: Mapping[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "QuantizeLinear": _quantize,
}
