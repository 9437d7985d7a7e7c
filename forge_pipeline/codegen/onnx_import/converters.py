"""Converters from ONNX to Relax that TVM's front end lacks, or whose result would be slow or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from forge_pipeline.codegen.onnx_import.attention import convert_attention, convert_swish
from forge_pipeline.codegen.onnx_import.block_quantized import dequantize
from forge_pipeline.codegen.onnx_import.depth_space import convert_depth_to_space, convert_space_to_depth
from forge_pipeline.codegen.onnx_import.dynamic_quantize import convert_dynamic_quantize
from forge_pipeline.codegen.onnx_import.integer_matmul import convert_conv_integer, convert_matmul_integer
from forge_pipeline.codegen.onnx_import.recurrent import convert_gru, convert_lstm, convert_rnn
from forge_pipeline.codegen.onnx_import.reductions import REDUCTIONS
from forge_pipeline.codegen.onnx_import.resize import convert_resize, convert_upsample
from forge_pipeline.codegen.onnx_import.trees import convert_tree_ensemble, convert_tree_regressor
from forge_pipeline.codegen.onnx_import.vector_ops import convert_lp_normalization, convert_one_hot
from forge_pipeline.codegen.onnx_import.window_padding import WINDOWED, convert_conv_transpose

BETWEEN = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), ("int32", 2.0**31 - 2.0**16)),
    **dict.fromkeys(("int32", "uint32"), ("int64", 2.0**63 - 2.0**39)),
    "int64": ("int64", 2.0**63 - 2.0**39),
}
"""What floats become on their way to an integer, and the largest of it: its low bits, which stay, are 0."""

Converter = Callable[[Any, list[Any], dict[str, Any], int], Any]
"""``(block builder, inputs, attributes, opset) -> expression``; an absent optional input is None or missing."""


def _chain(name: str, builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Sum, Max and Min of many as binary operators, which fuse; TVM's converter stacks all inputs and reduces."""
    from tvm.relax import op

    result = inputs[0]
    for value in inputs[1:]:
        result = builder.normalize(getattr(op, name)(result, value))
    return result


def _mean(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    from tvm import relax

    total = _chain("add", builder, inputs, attributes, opset)
    return relax.op.divide(total, relax.const(float(len(inputs)), str(total.ty.dtype)))


def _clip(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Clip as maximum and minimum, which fuse; TVM's converter calls a kernel that nothing is fused with."""
    from tvm import relax
    from tvm.ir import GenericConst

    value = inputs[0]
    bounds = [*inputs[1:3], None, None][:2]
    if opset < 11:
        dtype = str(value.ty.dtype)
        bounds = [relax.const(attributes[key], dtype) if key in attributes else None for key in ("min", "max")]
    low, high = bounds
    if low is not None:
        is_relu = isinstance(low, GenericConst) and float(low.value.numpy().item()) == 0.0
        value = relax.op.nn.relu(value) if is_relu else relax.op.maximum(value, low)
        value = builder.normalize(value)
    return value if high is None else relax.op.minimum(value, high)


def _is_inf(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """IsInf with its two flags, which TVM's converter ignores."""
    from tvm import relax
    from tvm.relax import op

    dtype = str(inputs[0].ty.dtype)
    signs = [sign for sign, key in ((1, "detect_positive"), (-1, "detect_negative")) if attributes.get(key, 1)]
    found = [op.equal(inputs[0], relax.const(sign * float("inf"), dtype)) for sign in signs]
    if not found:
        return op.zeros_like(inputs[0], dtype="bool")
    return found[0] if len(found) == 1 else op.logical_or(*map(builder.normalize, found))


def _expand(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Expand, where an extent is 1 or both are equal; TVM reads extents as numbers, and gets those of data wrong."""
    from tvm import relax, tirx
    from tvm.ir import GenericConst
    from tvm.sym.analyzer import Analyzer

    data, shape = inputs
    if isinstance(shape, GenericConst):
        wanted = [tirx.IntImm("int64", int(extent)) for extent in shape.value.numpy()]
    elif isinstance(shape, relax.ShapeExpr):
        wanted = list(shape.values)
    else:
        raise NotImplementedError("its shape is computed from data")
    own, analyzer = list(data.ty.shape.values), Analyzer()
    rank, one = max(len(own), len(wanted)), tirx.IntImm("int64", 1)
    own, wanted = [one] * (rank - len(own)) + own, [one] * (rank - len(wanted)) + wanted
    extents = []
    for before, after in zip(own, wanted, strict=True):
        if analyzer.can_prove_equal(after, 1) or analyzer.can_prove_equal(before, after):
            extents.append(before)
        elif analyzer.can_prove_equal(before, 1):
            extents.append(after)
        else:
            shown = [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in (before, after)]
            raise NotImplementedError(f"an extent {shown[0]} to {shown[1]}, not known to be 1 or the same")
    return relax.op.broadcast_to(data, relax.ShapeExpr(extents))


def _pow(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Pow of a float by a number of any type, which TVM's operator wants to be the same."""
    from tvm.relax import op

    base, exponent = inputs
    dtype = str(base.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        raise NotImplementedError("powers of integers")
    if str(exponent.ty.dtype) != dtype:
        exponent = builder.normalize(op.astype(exponent, dtype))
    return op.power(base, exponent)


def _cast(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Cast of a float to an integer that names its operand once; TVM's converter does so several times, and two of them
    in a row, fused, were an expression that took TVM over four minutes to simplify.

    What ONNX leaves open is the same on every CPU: a number too large loses high bits, infinities and NaN become 0, but
    as int64 the largest, or least, number.
    """
    from tvm.ir import GenericConst
    from tvm.relax import const, op
    from tvm.relax.frontend.onnx.onnx_frontend import Cast, get_type

    x, kind = inputs[0], str(get_type(attributes["to"]))
    dtype = str(getattr(getattr(x, "ty", None), "dtype", ""))
    if isinstance(x, GenericConst) or dtype not in ("float16", "float32", "float64") or kind not in BETWEEN:
        return Cast.get_converter(opset)(builder, inputs, attributes, [{}, {}])
    if dtype == "float16":
        x, dtype = builder.normalize(op.astype(x, "float32")), "float32"
    between, largest = BETWEEN[kind]
    if kind == "int64" and dtype == "float64":
        largest = math.nextafter(2.0**63, 0.0)
    least = -(2.0 ** (int(between[3:]) - 1))
    number = builder.normalize(op.minimum(x, const(largest, dtype)))  # NaN is none of the smaller
    number = builder.normalize(op.maximum(number, const(least, dtype)))
    steps = op.astype(number, between)
    return steps if kind == between else op.astype(builder.normalize(steps), kind)


def _slice(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Slice, before opset 10 too, where its parameters were attributes; TVM's converter looks for inputs only."""
    import numpy as np
    from tvm import relax
    from tvm.relax.frontend.onnx.onnx_frontend import Slice, onnx_input

    if opset < 10:
        parameters = [attributes.get(name) for name in ("starts", "ends", "axes")]
        constants = [None if x is None else relax.const(np.array(x, np.int64), "int64") for x in parameters]
        inputs = onnx_input([inputs[0], *constants])
    return Slice.get_converter(opset)(builder, inputs, attributes, [{}, {}])


def _non_max_suppression(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """NonMaxSuppression that keeps a box whose overlap is exactly the threshold; TVM's drops it."""
    import numpy as np
    from tvm import relax
    from tvm.relax.frontend.onnx.onnx_frontend import NonMaxSuppression

    if len(inputs) > 3 and inputs[3] is not None:
        above = np.nextafter(inputs[3].value.numpy().astype("float32"), np.float32(np.inf))
        inputs = [*inputs[:3], relax.const(above), *inputs[4:]]
    return NonMaxSuppression.get_converter(opset)(builder, inputs, attributes, [{}, {}])


def _pad(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Pad with a constant as Relax's operator, whose numbers can be read; TVM's converter makes a kernel of it."""
    from tvm import relax
    from tvm.ir import GenericConst
    from tvm.relax.frontend.onnx.onnx_frontend import Pad

    pads, filler, axes = (inputs[index] if len(inputs) > index else None for index in (1, 2, 3))
    known = (filler is None or isinstance(filler, GenericConst)) and axes is None
    known = known and attributes.get("mode", b"constant").decode() == "constant"
    if opset >= 11 and known and isinstance(pads, GenericConst) and str(inputs[0].ty.dtype) == "float32":
        before, after = pads.value.numpy().reshape(2, -1).tolist()
        if min(*before, *after) >= 0:
            widths = [width for pair in zip(before, after, strict=True) for width in pair]
            value = 0.0 if filler is None else float(filler.value.numpy().item())
            return relax.op.nn.pad(inputs[0], widths, pad_value=value)
    return Pad.get_converter(opset)(builder, inputs, attributes, [{}, {}])


def _elementwise(name: str, builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Add and its like, also of extents that are only equal when the model runs, which is checked then."""
    from tvm.relax.frontend.onnx import onnx_frontend

    agreeing: list[Any] = []
    for given in inputs:
        operand = given
        for other in agreeing:
            operand = _as_large(builder, other, operand)
        agreeing = [_as_large(builder, operand, other, numbers_only=True) for other in agreeing] + [operand]
    return getattr(onnx_frontend, name).get_converter(opset)(builder, agreeing, attributes, [{}] * len(inputs))


def _equal(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Equal: of shapes, ahead where all is proved, else when the model runs; of flags, as what is not exclusive.

    TVM's converter calls shapes different whose expressions are: ``n`` and ``m``, though both may be 3; and no machine
    code can be made of its comparison of flags.
    """
    from tvm.ir import GenericConst
    from tvm.relax import ShapeExpr, const, op

    if any(isinstance(value, ShapeExpr) for value in inputs):
        known = _proved_equal(*inputs)
        if known is not None:
            return const(known, "bool")
        inputs = [
            builder.normalize(op.shape_to_tensor(value)) if isinstance(value, ShapeExpr) else value for value in inputs
        ]
    is_folded = all(isinstance(value, GenericConst) for value in inputs)
    if not is_folded and all(str(getattr(getattr(value, "ty", None), "dtype", "")) == "bool" for value in inputs):
        return op.logical_not(_elementwise("Xor", builder, inputs, attributes, opset))
    return _elementwise("Equal", builder, inputs, attributes, opset)


def _proved_equal(left: Any, right: Any) -> list[bool] | None:
    """Return entry by entry whether two shapes are equal, or None where that hangs on sizes, or one is no shape."""
    from tvm import relax, tirx
    from tvm.ir import GenericConst
    from tvm.relax.frontend.onnx.onnx_frontend import get_prim_expr_list
    from tvm.sym.analyzer import Analyzer, ConstIntBound

    if not all(
        isinstance(value, relax.ShapeExpr) or (isinstance(value, GenericConst) and value.ty.ndim == 1)
        for value in (left, right)
    ):
        return None
    shapes = [get_prim_expr_list(value) for value in (left, right)]
    if len(shapes[0]) != len(shapes[1]):
        return None
    analyzer, found = Analyzer(), []
    for a, b in zip(*shapes, strict=True):
        difference = a - b
        for variable in tirx.analysis.undefined_vars(difference):
            analyzer.update(variable, ConstIntBound(0, ConstIntBound.POS_INF))
        is_equal = analyzer.can_prove_equal(difference, 0)
        if not is_equal and not analyzer.can_prove(tirx.NE(difference, tirx.IntImm("int64", 0))):
            return None
        found.append(is_equal)
    return found


def _as_large(builder: Any, left: Any, right: Any, *, numbers_only: bool = False) -> Any:
    """Return ``right``, claimed to have the extents of ``left`` where these are other expressions for what must agree.

    Only an extent that is 1 in the model is broadcast; one that turns out to be 1 when it runs is refused by it then.
    ``numbers_only``: only extents that are numbers on the left are claimed.
    """
    from tvm import relax, tirx
    from tvm.sym.analyzer import Analyzer

    shapes = [getattr(getattr(side, "ty", None), "shape", None) for side in (left, right)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return right
    own, other = (list(shape.values) for shape in shapes if shape is not None)
    analyzer, wanted = Analyzer(), list(other)
    for axis in range(1, min(len(own), len(other)) + 1):
        a, b = own[-axis], other[-axis]
        is_number = isinstance(a, tirx.IntImm)
        if isinstance(b, tirx.IntImm) or (is_number and int(a) == 1) or (numbers_only and not is_number):
            continue
        if analyzer.can_prove_equal(a, b):
            continue
        wanted[-axis] = a
    if all(a is b for a, b in zip(wanted, other, strict=True)):
        return right
    return builder.match_cast(right, relax.TensorType(wanted, right.ty.dtype))


BROADCASTING = (
    "Add", "And", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Or", "Sub", "Where",
    "Xor",
)  # fmt: skip
"""Operators whose operands' extents are claimed to agree where the model does not say so."""

CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "Attention": convert_attention,
        "Swish": convert_swish,
        "Sum": partial(_chain, "add"),
        "Max": partial(_chain, "maximum"),
        "Min": partial(_chain, "minimum"),
        "Mean": _mean,
        "Cast": _cast,
        "Clip": _clip,
        "IsInf": _is_inf,
        "ConvInteger": convert_conv_integer,
        **WINDOWED,
        "ConvTranspose": convert_conv_transpose,
        "DepthToSpace": convert_depth_to_space,
        "DequantizeLinear": dequantize,
        "DynamicQuantizeLinear": convert_dynamic_quantize,
        "Expand": _expand,
        "LpNormalization": convert_lp_normalization,
        "OneHot": convert_one_hot,
        "MatMulInteger": convert_matmul_integer,
        "NonMaxSuppression": _non_max_suppression,
        "Pad": _pad,
        "Pow": _pow,
        "Resize": convert_resize,
        "Upsample": convert_upsample,
        **{name: partial(_elementwise, name) for name in BROADCASTING},
        "Equal": _equal,
        "Slice": _slice,
        "SpaceToDepth": convert_space_to_depth,
        "TreeEnsemble": convert_tree_ensemble,
        "TreeEnsembleRegressor": convert_tree_regressor,
        "LSTM": convert_lstm,
        "GRU": convert_gru,
        "RNN": convert_rnn,
        **REDUCTIONS,
    }
)
