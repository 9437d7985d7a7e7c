"""Which converter emits an operator: the families' tables, joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.onnx_import.attention import convert_attention
from forge_pipeline.codegen.onnx_import.block_quantized import dequantize
from forge_pipeline.codegen.onnx_import.dynamic_quantize import convert_dynamic_quantize
from forge_pipeline.codegen.onnx_import.integer_matmul import convert_conv_integer, convert_matmul_integer
from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators import (
    activation,
    convolution,
    creation,
    data_movement,
    elementwise,
    indexing,
    linear,
    normalization,
    ordering,
    pooling,
    quantization,
    reduction,
    selection,
    trees,
)
from forge_pipeline.codegen.onnx_import.recurrent import convert_gru, convert_lstm, convert_rnn
from forge_pipeline.codegen.onnx_import.resize import convert_resize, convert_upsample
from forge_pipeline.ir.ml.builder import ML
from forge_pipeline.ir.program_operators import DOMAIN

if TYPE_CHECKING:
    import onnx

SHAPES: Mapping[str, tuple[int, ...]] = {"Resize": (3,)}


def _adapted(convert: Callable[..., Any], node: NodeImport) -> Any:
    from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

    inputs: list[Any] = []
    for index in range(len(node.proto.input)):
        if not node.has(index):
            inputs.append(None)
            continue
        known = node.constant(index) if index else None
        contents = node.scope.contents(node.name(index)) if index in SHAPES.get(node.proto.op_type, ()) else None
        if known is not None and known.size <= 4096:
            inputs.append(node.const(known, node.dtype(index)))
        elif contents is not None:
            inputs.append(node.sizes(contents))
        else:
            inputs.append(node.input(index))
    attributes = {
        **dict(node.attributes),
        "tvm_custom": {"name": node.proto.name, "num_outputs": len(node.proto.output)},
    }
    if node.proto.op_type in ("Resize", "Upsample"):
        attributes |= {"forge_kernel": node.kernel, "forge_shape": node.result_shape()}
    found = node.scope.builder.normalize(convert(node.scope.builder, onnx_input(inputs), attributes, node.opset))
    return _unpacked(node, found)


def _unpacked(node: NodeImport, found: Any) -> Any:
    from tvm import relax

    if isinstance(found, relax.Tuple):
        return list(found.fields)
    if isinstance(found.ty, relax.TupleType):
        found = node.emit(found)
        return [node.part(found, index) for index in range(len(found.ty.fields))]
    return found


def _tvm(name: str, builder: Any, inputs: Any, attributes: Any, opset: int) -> Any:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return _get_convert_map()[name].get_converter(opset)(builder, inputs, attributes, [{}, {}])


@cache
def _all() -> Mapping[str, Converter]:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    own = {
        "Attention": convert_attention,
        "DequantizeLinear": dequantize,
        "DynamicQuantizeLinear": convert_dynamic_quantize,
        "ConvInteger": convert_conv_integer,
        "MatMulInteger": convert_matmul_integer,
        "GRU": convert_gru,
        "LSTM": convert_lstm,
        "RNN": convert_rnn,
        "Resize": convert_resize,
        "Upsample": convert_upsample,
    }
    families = (
        activation, convolution, creation, data_movement, elementwise, indexing, linear, normalization, ordering,
        pooling, quantization, reduction,
    )  # fmt: skip
    found: dict[str, Converter] = {name: partial(_adapted, partial(_tvm, name)) for name in _get_convert_map()}
    found.update({name: partial(_adapted, convert) for name, convert in own.items()})
    for family in families:
        found.update(family.CONVERTERS)
    return found


def converter_of(domain: str, operator: str) -> Converter | None:
    """Return what emits an operator, or None."""
    if domain == DOMAIN:
        return selection.CONVERTERS.get(operator)
    if domain == ML:
        return trees.CONVERTERS.get(operator)
    return _all().get(operator) if domain in ("", "ai.onnx") else None


def has_converter(node: onnx.NodeProto) -> bool:
    """Return whether an operator has a converter."""
    return node.domain not in ("", "ai.onnx") or node.op_type in _all()
