"""ONNX forms of Relax's layers: products, convolution, pooling, activation, attention, resizing, QDQ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported, element_type
from forge_pipeline.relax.to_onnx.tensors import Row, dtype_of, rank_of, static_shape

Known = dict[str, Any]


def _to(maker: Exporter, x: str, have: str, want: str) -> str:
    """Transpose from one layout to another that has the same letters."""
    if have == want:
        return x
    if sorted(have) != sorted(want):
        raise Unsupported(f"layout {have}")
    return maker.node("Transpose", x, perm=[have.index(letter) for letter in want])


def _plain_layouts(rank: int) -> tuple[str, str]:
    """Return ONNX's layouts of data and kernels for a number of dimensions: NCHW and OIHW for 4."""
    spatial = "DHW"[5 - rank :]
    return f"NC{spatial}", f"OI{spatial}"


def _convolution(maker: Exporter, call: Any, known: Known, x: str, weight: str) -> str:
    data, kernel = _plain_layouts(rank_of(call.args[0]))
    y = maker.node(
        "Conv",
        _to(maker, x, known["data_layout"], data),
        _to(maker, weight, known["kernel_layout"], kernel),
        strides=known["strides"],
        pads=known["padding"],
        dilations=known["dilation"],
        group=known["groups"],
    )
    return _out(maker, call, known, y, data)


def _out(maker: Exporter, call: Any, known: Known, y: str, data: str) -> str:
    y = _to(maker, y, data, known["out_layout"] or known["data_layout"])
    return y if dtype_of(call) == dtype_of(call.args[0]) else maker.node("Cast", y, to=element_type(dtype_of(call)))


def _transposed(maker: Exporter, call: Any, known: Known, x: str, weight: str) -> str:
    data, _ = _plain_layouts(rank_of(call.args[0]))
    y = maker.node(
        "ConvTranspose",
        _to(maker, x, known["data_layout"], data),
        _to(maker, weight, known["kernel_layout"], f"IO{data[2:]}"),
        strides=known["strides"],
        pads=known["padding"],
        dilations=known["dilation"],
        output_padding=known["output_padding"],
        group=known["groups"],
    )
    return _out(maker, call, known, y, data)


def _pool(name: str, maker: Exporter, call: Any, known: Known, x: str) -> str:
    data, _ = _plain_layouts(rank_of(call.args[0]))
    average = name == "AveragePool"
    y = maker.node(
        name,
        _to(maker, x, known["layout"], data),
        kernel_shape=known["pool_size"],
        strides=known["strides"],
        pads=known["padding"],
        dilations=known["dilation"],
        ceil_mode=int(known["ceil_mode"]),
        count_include_pad=int(known["count_include_pad"]) if average else None,
    )
    return _to(maker, y, data, known["out_layout"] or known["layout"])


def _adaptive(maker: Exporter, call: Any, known: Known, x: str) -> str:
    data, _ = _plain_layouts(rank_of(call.args[0]))
    x = _to(maker, x, known["layout"], data)
    sizes = known.get("output_size")
    if sizes is not None and all(size == 1 for size in sizes):
        y = maker.node("GlobalAveragePool", x)
    elif sizes is None:
        y = x
    else:
        shape = static_shape(call.args[0], "which is pooled to a fixed size")
        extents = [shape[known["layout"].index(letter)] for letter in data[2:]]
        if any(extent % size for extent, size in zip(extents, sizes, strict=True)):
            raise Unsupported(f"{extents} pooled to {list(sizes)}, which do not divide them")
        steps = [extent // size for extent, size in zip(extents, sizes, strict=True)]
        y = maker.node("AveragePool", x, kernel_shape=steps, strides=steps)
    return _to(maker, y, data, known["out_layout"] or known["layout"])


def _matmul(maker: Exporter, call: Any, known: Known, a: str, b: str) -> str:
    if not dtype_of(call.args[0]).startswith(("float", "bfloat")) and dtype_of(call) != dtype_of(call.args[0]):
        a, b = (maker.node("Cast", item, to=element_type(dtype_of(call))) for item in (a, b))
    y = maker.node("MatMul", a, b)
    same = dtype_of(call) == dtype_of(call.args[0]) or not dtype_of(call.args[0]).startswith(("float", "bfloat"))
    return y if same else maker.node("Cast", y, to=element_type(dtype_of(call)))


def _einsum(maker: Exporter, call: Any, known: Known, values: list[str]) -> str:
    return maker.node("Einsum", *values, equation=known["subscripts"])


def _axis(name: str, maker: Exporter, call: Any, known: Known, x: str) -> str:
    return maker.node(name, x, axis=known["axis"])


def _plain(name: str, maker: Exporter, call: Any, known: Known, *inputs: str, **attributes: Any) -> str:
    return maker.node(name, *inputs, **attributes)


def _gelu_tanh(maker: Exporter, call: Any, known: Known, x: str) -> str:
    return maker.node("Gelu", x, approximate="tanh")


def _leaky(maker: Exporter, call: Any, known: Known, x: str) -> str:
    return maker.node("LeakyRelu", x, alpha=known["alpha"])


def _silu(maker: Exporter, call: Any, known: Known, x: str) -> str:
    return maker.node("Mul", x, maker.node("Sigmoid", x))


def _relu6(maker: Exporter, call: Any, known: Known, x: str) -> str:
    return maker.node("Clip", x, *(maker.constant(bound, dtype_of(call)) for bound in (0, 6)))


def _softplus(maker: Exporter, call: Any, known: Known, x: str) -> str:
    if known["beta"] != 1.0:
        beta = maker.constant(known["beta"], dtype_of(call))
        return maker.node("Div", maker.node("Softplus", maker.node("Mul", x, beta)), beta)
    return maker.node("Softplus", x)


def _prelu(maker: Exporter, call: Any, known: Known, x: str, alpha: str) -> str:
    rank = rank_of(call.args[0])
    along = [1] * (rank - known["axis"] % rank - 1)
    return maker.node("PRelu", x, maker.node("Reshape", alpha, maker.constant([-1, *along], "int64", "shape")))


def _dropout(maker: Exporter, call: Any, known: Known, x: str) -> list[str]:
    return [x, maker.node("Expand", maker.constant(1, dtype_of(call.args[0])), maker.node("Shape", x))]


def _pad(maker: Exporter, call: Any, known: Known, x: str) -> str:
    widths = known["pad_width"]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}.get(
        known["pad_mode"]
    )
    if mode is None:
        raise Unsupported(f"mode {known['pad_mode']}")
    pads = maker.constant([*widths[0::2], *widths[1::2]], "int64", "pads")
    return maker.node("Pad", x, pads, maker.constant(known["pad_value"], dtype_of(call)), mode=mode)


def _attention(maker: Exporter, call: Any, known: Known, q: str, k: str, v: str, bias: str | None = None) -> str:
    """softmax(q k^T scale + bias) v, for tensors of [batch, sequence, heads, size]."""
    if known.get("window_size") is not None or known.get("causal_mask") not in (None, "TopLeft"):
        raise Unsupported("a window, or a causal mask that starts at the end")
    dtype = dtype_of(call)
    size = static_shape(call.args[0], "which attention scales by")[-1] if known.get("scale") is None else None
    scale = known["scale"] if size is None else 1 / np.sqrt(size)
    q, v = (maker.node("Transpose", item, perm=[0, 2, 1, 3]) for item in (q, v))
    scores = maker.node("MatMul", q, maker.node("Transpose", k, perm=[0, 2, 3, 1]))
    scores = maker.node("Mul", scores, maker.constant(scale, dtype))
    if bias is not None:
        scores = maker.node("Add", scores, bias)
    if known.get("causal_mask") is not None:
        rows, columns = (static_shape(call.args[n], "which a causal mask needs")[1] for n in (0, 1))
        mask = np.triu(np.full((rows, columns), -np.inf), 1)
        scores = maker.node("Add", scores, maker.constant(mask, dtype, "mask"))
    y = maker.node("MatMul", maker.node("Softmax", scores, axis=-1), v)
    return maker.node("Transpose", y, perm=[0, 2, 1, 3])


METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round_prefer_floor": "round_prefer_floor"}
ROUNDINGS |= {"round_prefer_ceil": "round_prefer_ceil", "": "floor"}


def _resize(maker: Exporter, call: Any, known: Known, x: str, dims: Any) -> str:
    layout, method = known["layout"], METHODS.get(known["method"])
    rounding = ROUNDINGS.get(known["rounding_method"]) if method == "nearest" else None
    if method is None or layout not in ("NCHW", "NHWC") or (method == "nearest" and rounding is None):
        raise Unsupported(f"{known['method']} with rounding {known['rounding_method']} in {layout}")
    plain = _to(maker, x, layout, "NCHW")
    lead = maker.node("Shape", plain, start=0, end=2)
    sizes = maker.node("Concat", lead, maker.shape(dims), axis=0)
    y = maker.node(
        "Resize",
        plain,
        "",
        "",
        sizes,
        mode=method,
        coordinate_transformation_mode=known["coordinate_transformation_mode"],
        nearest_mode=rounding,
        cubic_coeff_a=known["cubic_alpha"] if method == "cubic" else None,
        exclude_outside=int(known["cubic_exclude"]) if method == "cubic" else None,
    )
    return _to(maker, y, "NCHW", layout)


def _quantize(maker: Exporter, call: Any, known: Known, x: str, scale: str, zero: str) -> str:
    return maker.node("QuantizeLinear", x, scale, _zero(maker, call, zero, dtype_of(call)), axis=known["axis"])


def _dequantize(maker: Exporter, call: Any, known: Known, x: str, scale: str, zero: str) -> str:
    return maker.node(
        "DequantizeLinear", x, scale, _zero(maker, call, zero, dtype_of(call.args[0])), axis=known["axis"]
    )


def _zero(maker: Exporter, call: Any, zero: str, dtype: str) -> str:
    """ONNX wants the zero point in the type of what is quantized; Relax takes any."""
    return zero if dtype_of(call.args[2]) == dtype else maker.node("Cast", zero, to=element_type(dtype))


LAYERS: Mapping[str, Row] = MappingProxyType(
    {
        **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _convolution),
        **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _transposed),
        **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), partial(_pool, "MaxPool")),
        **dict.fromkeys(("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"), partial(_pool, "AveragePool")),
        **dict.fromkeys(("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"), _adaptive),
        "matmul": _matmul,
        "einsum": _einsum,
        "nn.softmax": partial(_axis, "Softmax"),
        "nn.log_softmax": partial(_axis, "LogSoftmax"),
        "nn.relu": partial(_plain, "Relu"),
        "nn.gelu": partial(_plain, "Gelu"),
        "nn.selu": partial(_plain, "Selu"),
        "nn.gelu_tanh": _gelu_tanh,
        "nn.leakyrelu": _leaky,
        "nn.silu": _silu,
        "nn.relu6": _relu6,
        "nn.softplus": _softplus,
        "nn.prelu": _prelu,
        "nn.dropout": _dropout,
        "nn.pad": _pad,
        "nn.attention": _attention,
        "nn.attention_bias": _attention,
        "image.resize2d": _resize,
        "quantize": _quantize,
        "dequantize": _dequantize,
    }
)
