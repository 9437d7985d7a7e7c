"""Relax to ONNX: every operator with a row computes the same in both; what has no row is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from forge_pipeline.errors import ModelError
from forge_pipeline.ffi import torch_hidden

with torch_hidden():
    import tvm
    from tvm import relax
    from tvm.relax import op
    from tvm.relax.frontend.onnx import from_onnx

from forge_pipeline.relax.to_onnx.checked import checked_export
from forge_pipeline.relax.to_onnx.indexing import INDEXED
from forge_pipeline.relax.to_onnx.layers import LAYERS
from forge_pipeline.relax.to_onnx.reductions import REDUCED
from forge_pipeline.relax.to_onnx.tensors import BINARY, TENSORS, UNARY

F, B, I = "float32", "bool", "int32"  # noqa: E741
X = ((2, 8, 4, 6), F)
V = ((4, 6), F)


def const(*shape: int, dtype: str = F) -> Any:
    return relax.const(np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(dtype))


def ints(*values: int) -> Any:
    return relax.const(np.array(values, np.int64))


CASES: dict[str, tuple[list[Any], Callable[..., Any]]] = {
    "divide": ([X, X], op.divide),
    "not_equal": ([X, X], op.not_equal),
    "isfinite": ([X], op.isfinite),
    "square": ([X], op.square),
    "rsqrt": ([X], lambda x: op.rsqrt(op.add(op.square(x), const()))),
    "trunc": ([X], op.trunc),
    "floor_divide": ([X, X], op.floor_divide),
    "floor_mod": ([X, X], op.floor_mod),
    "clip": ([X], lambda x: op.clip(x, -0.5, 0.5)),
    "astype": ([X], lambda x: op.astype(x, "int32")),
    "reshape": ([(("N", 8, 6), F)], lambda x: op.reshape(x, (x.ty.shape.values[0], 48))),
    "flatten": ([X], op.flatten),
    "nn.batch_flatten": ([X], op.nn.batch_flatten),
    "permute_dims": ([X], lambda x: op.permute_dims(x, [0, 2, 3, 1])),
    "expand_dims": ([V], lambda x: op.expand_dims(x, [0, 2])),
    "squeeze": ([((1, 4, 1), F)], lambda x: op.squeeze(x, [0])),
    "concat": ([V, V], lambda a, b: op.concat([a, b], 1)),
    "stack": ([V, V], lambda a, b: op.stack([a, b], 1)),
    "split": ([X], lambda x: op.split(x, [1, 3], 1)),
    "broadcast_to": ([((1, 6), F)], lambda x: op.broadcast_to(x, (4, 6))),
    "tile": ([V], lambda x: op.tile(x, (2, 1, 3))),
    "repeat": ([V], lambda x: op.repeat(x, 3, 1)),
    "flip": ([V], lambda x: op.flip(x, 1)),
    "strided_slice": ([X], lambda x: op.strided_slice(x, [1, 3], [1, 0], [7, 6], [2, 3])),
    "take": ([X], lambda x: op.take(x, ints(3, 0, 1), axis=1)),
    "gather_elements": ([V], lambda x: op.gather_elements(x, relax.const(np.array([[1, 0], [2, 2]], np.int64)), 1)),
    "gather_nd": ([V], lambda x: op.gather_nd(x, relax.const(np.array([[1, 0], [2, 3]]), "int64"))),
    "scatter_elements": (
        [V],
        lambda x: op.scatter_elements(x, relax.const(np.array([[1, 0]], np.int64)), const(1, 2), axis=1),
    ),
    "scatter_nd": ([V], lambda x: op.scatter_nd(x, relax.const(np.array([[1], [3]], np.int64)), const(2, 6))),
    "one_hot": ([((3,), I)], lambda x: op.one_hot(x, relax.prim_value(1), relax.prim_value(0), 4)),
    "full": ([V], lambda x: op.add(x, op.full((4, 6), relax.const(2.0, F), F))),
    "full_like": ([V], lambda x: op.full_like(x, relax.const(2.0, F))),
    "zeros": ([V], lambda x: op.add(x, op.zeros((4, 6), F))),
    "ones": ([V], lambda x: op.add(x, op.ones((4, 6), F))),
    "zeros_like": ([V], op.zeros_like),
    "ones_like": ([V], op.ones_like),
    "arange": ([((6,), F)], lambda x: op.add(x, op.arange(0, 6, 1, F))),
    "tril": ([V], lambda x: op.tril(x, 1)),
    "triu": ([V], lambda x: op.triu(x, -1)),
    "variance": ([X], lambda x: op.variance(x, [1, 2], keepdims=True)),
    "std": ([X], lambda x: op.std(x, [1])),
    "mean": ([X], lambda x: op.mean(x, [2, 3], keepdims=True)),
    "sum": ([X], lambda x: op.sum(x, [1])),
    "max": ([X], op.max),
    "min": ([X], lambda x: op.min(x, [3])),
    "prod": ([V], lambda x: op.prod(x, [1])),
    "argmax": ([V], lambda x: op.argmax(x, 1)),
    "argmin": ([V], lambda x: op.argmin(x, 0, keepdims=True)),
    "cumsum": ([V], lambda x: op.cumsum(x, 1)),
    "topk": ([V], lambda x: op.topk(x, 2, 1, "both", True, "int64")),
    "sort": ([V], lambda x: op.sort(x, 1)),
    "argsort": ([V], lambda x: op.argsort(x, 1, True, "int64")),
    "shape_to_tensor": ([(("N", 6), F)], lambda x: op.shape_to_tensor(op.shape_of(x))),
    "masked_fill": ([V], lambda x: op.masked_fill(x, op.less(x, const(4, 6)), relax.const(0.0, F))),
    "where": ([V, V], lambda a, b: op.where(op.less(a, b), a, b)),
    "matmul": ([((2, 4, 6), F)], lambda x: op.matmul(x, const(6, 5))),
    "einsum": ([V, V], lambda a, b: op.einsum([a, b], "ij,kj->ik")),
    "nn.conv1d": ([((2, 4, 9), F)], lambda x: op.nn.conv1d(x, const(6, 2, 3), 2, 1, 1, 2)),
    "nn.conv2d": (
        [((2, 6, 5, 4), F)],
        lambda x: op.nn.conv2d(x, const(3, 3, 4, 8), 2, 1, data_layout="NHWC", kernel_layout="HWIO"),
    ),
    "nn.conv3d": ([((1, 2, 4, 5, 6), F)], lambda x: op.nn.conv3d(x, const(3, 2, 2, 2, 2))),
    "nn.conv1d_transpose": ([((2, 4, 9), F)], lambda x: op.nn.conv1d_transpose(x, const(4, 3, 3), 2, 1)),
    "nn.conv2d_transpose": (
        [((1, 4, 5, 6), F)],
        lambda x: op.nn.conv2d_transpose(x, const(4, 3, 3, 3), (2, 2), (1, 1), (1, 0)),
    ),
    "nn.conv3d_transpose": ([((1, 2, 3, 4, 3), F)], lambda x: op.nn.conv3d_transpose(x, const(2, 3, 2, 2, 2), 2)),
    "nn.max_pool1d": ([((2, 4, 9), F)], lambda x: op.nn.max_pool1d(x, 3, 2, 1)),
    "nn.max_pool2d": ([X], lambda x: op.nn.max_pool2d(x, (3, 2), (2, 2), (1, 0))),
    "nn.max_pool3d": ([((1, 2, 4, 5, 6), F)], lambda x: op.nn.max_pool3d(x, (2, 2, 2), (2, 2, 2))),
    "nn.avg_pool1d": ([((2, 4, 9), F)], lambda x: op.nn.avg_pool1d(x, 3, 2, 1)),
    "nn.avg_pool2d": ([X], lambda x: op.nn.avg_pool2d(x, (3, 2), (2, 2), (1, 0), count_include_pad=True)),
    "nn.avg_pool3d": ([((1, 2, 4, 5, 6), F)], lambda x: op.nn.avg_pool3d(x, (2, 2, 2), (2, 2, 2))),
    "nn.adaptive_avg_pool1d": ([((2, 4, 9), F)], lambda x: op.nn.adaptive_avg_pool1d(x, 3)),
    "nn.adaptive_avg_pool2d": ([X], lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1))),
    "nn.adaptive_avg_pool3d": ([((1, 2, 4, 4, 6), F)], lambda x: op.nn.adaptive_avg_pool3d(x, (2, 2, 3))),
    "nn.layer_norm": ([X], lambda x: op.nn.layer_norm(x, const(4, 6), const(4, 6), [-2, -1], 1e-3)),
    "nn.rms_norm": ([X], lambda x: op.nn.rms_norm(x, const(6), -1)),
    "nn.group_norm": ([X], lambda x: op.nn.group_norm(x, const(8), const(8), 4, 1, [2, 3])),
    "nn.instance_norm": ([X], lambda x: op.nn.instance_norm(x, const(8), const(8), 1, [2, 3])),
    "nn.batch_norm": (
        [((2, 4, 6, 8), F)],
        lambda x: relax.TupleGetItem(
            op.nn.batch_norm(x, const(8), const(8), const(8), const(8), axis=3, training=False), 0
        ),
    ),
    "nn.softmax": ([X], lambda x: op.nn.softmax(x, 1)),
    "nn.log_softmax": ([X], lambda x: op.nn.log_softmax(x, -1)),
    "nn.relu": ([X], op.nn.relu),
    "nn.gelu": ([X], op.nn.gelu),
    "nn.selu": ([X], op.nn.selu),
    "nn.gelu_tanh": ([X], op.nn.gelu_tanh),
    "nn.leakyrelu": ([X], lambda x: op.nn.leakyrelu(x, 0.2)),
    "nn.silu": ([X], op.nn.silu),
    "nn.relu6": ([X], op.nn.relu6),
    "nn.softplus": ([X], lambda x: op.nn.softplus(x, 2.0)),
    "nn.prelu": ([X], lambda x: op.nn.prelu(x, const(8), 1)),
    "nn.dropout": ([X], lambda x: relax.TupleGetItem(op.nn.dropout(x, 0.5), 0)),
    "nn.pad": ([X], lambda x: op.nn.pad(x, (0, 0, 0, 0, 1, 2, 3, 4), "constant", 0.5)),
    "nn.attention": ([((2, 4, 2, 8), F)] * 3, lambda q, k, v: op.nn.attention(q, k, v, causal_mask="TopLeft")),
    "nn.attention_bias": (
        [((2, 4, 2, 8), F)] * 3,
        lambda q, k, v: op.nn.attention(q, k, v, const(2, 2, 4, 4), scale=tvm.tirx.FloatImm(F, 0.3)),
    ),
    "image.resize2d": ([X], lambda x: op.image.resize2d(x, (8, 12), method="linear")),
    "quantize": ([X], lambda x: op.quantize(x, const(8), relax.const(np.zeros(8, np.int8)), axis=1)),
    "dequantize": (
        [((2, 8, 4), "int8")],
        lambda x: op.dequantize(x, const(8), relax.const(np.zeros(8, np.int8)), axis=1),
    ),
}
LOGICAL = {"logical_not", "logical_and", "logical_or", "logical_xor"}
BITS = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"}
SAMPLE = {
    *("nn.conv2d", "nn.conv2d_transpose", "nn.avg_pool2d", "nn.batch_norm", "nn.attention", "nn.group_norm"),
    *("reshape", "strided_slice", "split", "topk", "image.resize2d", "quantize"),
}
"""Rows with most to get wrong: these are tested every time."""
INDIRECT = {"shape_of"}
"""Rows that only make sense beside another one, and are tested with it."""


def module(shapes: list[tuple[tuple[Any, ...], str]], make: Callable[..., Any]) -> tvm.IRModule:
    symbols = {name: tvm.tirx.Var(name, "int64") for shape, _ in shapes for name in shape if isinstance(name, str)}
    inputs = [
        relax.Var(f"x{index}", relax.TensorType([symbols.get(extent, extent) for extent in shape], dtype))
        for index, (shape, dtype) in enumerate(shapes)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(make(*inputs))
        builder.emit_func_output(output)
    return builder.get()


def names(mod: tvm.IRModule) -> list[str]:
    kind = mod["main"].ret_ty
    return [f"y{n}" for n in range(len(kind.fields) if isinstance(kind, relax.TupleType) else 1)]


def case(name: str) -> tuple[list[Any], Callable[..., Any]]:
    if name in CASES:
        return CASES[name]
    dtype = B if name in LOGICAL else I if name in BITS else F
    function = getattr(op, name)
    if name in UNARY:
        return [((4, 6), dtype)], function
    return [((4, 6), dtype)] * 2, function


def test_every_row_has_a_case() -> None:
    untested = {*TENSORS, *INDEXED, *REDUCED, *LAYERS}
    assert untested - set(CASES) - set(UNARY) - set(BINARY) - INDIRECT == set()


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SAMPLE else pytest.mark.long)
        for name in sorted({*TENSORS, *INDEXED, *REDUCED, *LAYERS} - INDIRECT)
    ],
)
def test_an_operator_computes_the_same_in_onnx(name: str) -> None:
    mod = module(*case(name))
    model = checked_export(mod, names(mod), {})
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == names(mod)


def test_operators_without_a_form_in_onnx_are_all_named() -> None:
    mod = module([V], lambda x: op.nn.relu(op.nn.nll_loss(op.nn.log_softmax(x), ints(0, 1, 2, 3))))
    with pytest.raises(ModelError) as refusal:
        checked_export(mod, names(mod), {})
    assert refusal.value.found.startswith("nn.nll_loss (")


def test_uses_without_a_form_in_onnx_are_refused_with_the_reason() -> None:
    mod = module([((1, 3, 7, 7), F)], lambda x: op.nn.adaptive_avg_pool2d(x, (2, 2)))
    with pytest.raises(ModelError, match=r"\[7, 7\] pooled to \[2, 2\], which do not divide them"):
        checked_export(mod, names(mod), {})


def test_the_kernels_of_tvms_front_end_are_read() -> None:
    graph = """<ir_version: 10, opset_import: ["": 18]> net (float[1, 2, 8, 8] x) => (float[1, 2, 11, 9] y)
        <float zero = {0.0}, float six = {6.0}, int64[8] widths = {0, 0, 1, 0, 0, 0, 2, 1}, float fill = {0.5}>
        { c = Clip(x, zero, six)
          y = Pad(c, widths, fill) }"""
    mod = from_onnx(onnx.parser.parse_model(graph))
    model = checked_export(mod, ["y"], {})
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Max"), kinds.count("Min"), kinds.count("Pad")) == (1, 1, 1)


def test_a_bias_behind_a_convolution_becomes_its_own() -> None:
    mod = module([X], lambda x: op.add(const(1, 5, 1, 1), op.nn.conv2d(x, const(5, 8, 3, 3))))
    model = checked_export(mod, ["y"], {})
    assert [node.op_type for node in model.graph.node] == ["Conv", "Identity"]
    assert len(model.graph.node[0].input) == 3
