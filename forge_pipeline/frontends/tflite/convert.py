"""TensorFlow Lite models (`.tflite`) -> ONNX, by a reader of our own; TensorFlow is not needed.

A quantized model keeps its integers, scales and zero points, in QDQ form; weights in half precision or in integers
(dynamic range) stay so behind a Cast or a DequantizeLinear. TensorFlow Lite computes between integers in fixed point
and ONNX in float32, so that a result can differ by one step of its scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from forge_pipeline.errors import DataError, ModelError
from forge_pipeline.frontends.agreement import sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import BATCH, rename
from forge_pipeline.frontends.tflite import compute
from forge_pipeline.frontends.tflite import data_movement as moves
from forge_pipeline.frontends.tflite import model as tflite_model
from forge_pipeline.frontends.tflite.builder import Builder

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET: Final = 17
IR_VERSION: Final = 10

OPERATORS: Final[dict[str, compute.Convert]] = {
    "ABS": compute.unary("Abs"),
    "ADD": compute.binary("Add"),
    "ARG_MAX": compute.extreme_index("ArgMax"),
    "ARG_MIN": compute.extreme_index("ArgMin"),
    "AVERAGE_POOL_2D": compute.pool("AveragePool"),
    "BATCH_MATMUL": compute.batched_product,
    "BROADCAST_TO": moves.broadcast_to,
    "CAST": moves.cast,
    "CEIL": compute.unary("Ceil"),
    "CONCATENATION": moves.concatenation,
    "CONV_2D": compute.convolution,
    "COS": compute.unary("Cos"),
    "DEPTHWISE_CONV_2D": compute.depthwise,
    "DEPTH_TO_SPACE": moves.depth_to_space,
    "DEQUANTIZE": moves.dequantize,
    "DIV": compute.binary("Div"),
    "ELU": compute.unary("Elu"),
    "EQUAL": compute.plain("Equal"),
    "EXP": compute.unary("Exp"),
    "EXPAND_DIMS": moves.expand_dims,
    "FILL": moves.fill,
    "FLOOR": compute.unary("Floor"),
    "FLOOR_DIV": compute.floor_div,
    "FLOOR_MOD": compute.floor_mod,
    "FULLY_CONNECTED": compute.fully_connected,
    "GATHER": moves.gather,
    "GELU": compute.gelu,
    "GREATER": compute.plain("Greater"),
    "GREATER_EQUAL": compute.plain("GreaterOrEqual"),
    "HARD_SWISH": compute.unary("HardSwish"),
    "L2_NORMALIZATION": compute.last_axis("LpNormalization", p=2),
    "LEAKY_RELU": compute.leaky,
    "LESS": compute.plain("Less"),
    "LESS_EQUAL": compute.plain("LessOrEqual"),
    "LOG": compute.unary("Log"),
    "LOGICAL_AND": compute.plain("And"),
    "LOGICAL_NOT": compute.unary("Not"),
    "LOGICAL_OR": compute.plain("Or"),
    "LOGISTIC": compute.unary("Sigmoid"),
    "LOG_SOFTMAX": compute.last_axis("LogSoftmax"),
    "MAXIMUM": compute.plain("Max"),
    "MAX_POOL_2D": compute.pool("MaxPool"),
    "MEAN": compute.reduction("ReduceMean"),
    "MINIMUM": compute.plain("Min"),
    "MIRROR_PAD": moves.mirror_pad,
    "MUL": compute.binary("Mul"),
    "NEG": compute.unary("Neg"),
    "NOT_EQUAL": compute.not_equal,
    "PACK": moves.pack,
    "PAD": moves.pad,
    "PADV2": moves.pad,
    "POW": compute.plain("Pow"),
    "PRELU": compute.plain("PRelu"),
    "QUANTIZE": moves.quantize,
    "REDUCE_MAX": compute.reduction("ReduceMax"),
    "REDUCE_MIN": compute.reduction("ReduceMin"),
    "REDUCE_PROD": compute.reduction("ReduceProd"),
    "RELU": compute.unary("Relu"),
    "RELU6": compute.clipped(0.0, 6.0),
    "RELU_0_TO_1": compute.clipped(0.0, 1.0),
    "RELU_N1_TO_1": compute.clipped(-1.0, 1.0),
    "RESHAPE": moves.reshape,
    "RESIZE_BILINEAR": moves.resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": moves.resize("nearest"),
    "ROUND": compute.unary("Round"),
    "RSQRT": compute.rsqrt,
    "SELECT": moves.select,
    "SELECT_V2": moves.select,
    "SHAPE": moves.shape,
    "SIGN": compute.unary("Sign"),
    "SIN": compute.unary("Sin"),
    "SLICE": moves.slice_,
    "SOFTMAX": compute.softmax,
    "SPACE_TO_DEPTH": moves.space_to_depth,
    "SPLIT": moves.split,
    "SPLIT_V": moves.split_v,
    "SQRT": compute.unary("Sqrt"),
    "SQUARE": compute.square,
    "SQUARED_DIFFERENCE": compute.squared_difference,
    "SQUEEZE": moves.squeeze,
    "STRIDED_SLICE": moves.strided_slice,
    "SUB": compute.binary("Sub"),
    "SUM": compute.reduction("ReduceSum"),
    "TANH": compute.unary("Tanh"),
    "TILE": moves.tile,
    "TRANSPOSE": moves.transpose,
    "TRANSPOSE_CONV": compute.transposed_convolution,
    "UNPACK": moves.unpack,
}  # builtin operator of schema.fbs -> its converter


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the model in ``path`` as ONNX, its interface named by its signature or else by its tensors.

    The batch is open where the file says so and where three samples at once give what they give one by one.
    """
    graph = tflite_model.read(path)
    _check(graph)
    if any(None in graph.tensors[index].shape for index in graph.inputs.values()):
        opened = to_onnx(graph, open_batch=True)
        if _batches(opened):
            return Converted(model=opened, notes={"importer": "tflite", "batch": "open"})
    return Converted(model=to_onnx(graph, open_batch=False), notes={"importer": "tflite", "batch": "fixed"})


def _check(graph: tflite_model.Graph) -> None:
    missing = sorted({operator.name for operator in graph.operators} - OPERATORS.keys())
    if missing:
        raise ModelError(
            where="TensorFlow Lite operators",
            expected=f"some of the {len(OPERATORS)} that have a converter (forge_pipeline/frontends/tflite/convert.py)",
            found=", ".join(missing)[:500],
            fix="give the SavedModel that the file was converted from, or convert it with tf2onnx --tflite",
        )


def to_onnx(graph: tflite_model.Graph, *, open_batch: bool) -> ModelProto:
    """Return ``graph`` as an ONNX model. Raises ModelError for a use of an operator that has no converter."""
    from onnx import helper

    builder = Builder(graph, open_batch=open_batch)
    for name, index in graph.inputs.items():
        builder.give(index, name)
    for position, operator in enumerate(graph.operators):
        try:
            OPERATORS[operator.name](builder, operator)
        except ModelError as refusal:
            if refusal.where != "operator":
                raise
            where = f"operator {position}, {operator.name}"
            raise ModelError(where, refusal.expected, refusal.found, refusal.fix) from refusal
    model = helper.make_model(
        builder.graph(), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tflite"
    )
    rename(model, list(graph.inputs), list(graph.outputs))
    return model


def _batches(model: ModelProto) -> bool:
    """Tell whether three samples at once give what they give one by one; only the batch may be open."""
    from onnx import helper

    from forge_pipeline.ir.reference.interpreter import Interpreter

    feeds = {}
    for position, value in enumerate(model.graph.input):
        tensor = value.type.tensor_type
        extents = [3 if dim.dim_param == BATCH else dim.dim_value for dim in tensor.shape.dim]
        if not extents or extents[0] != 3 or 0 in extents or tensor.shape.dim[0].dim_param != BATCH:
            return False
        feeds[value.name] = sample(extents, str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), seed=position)
    run = Interpreter(model)
    try:
        together = run(feeds)
        single = [run({name: array[i : i + 1] for name, array in feeds.items()}) for i in range(3)]
    except DataError:  # a batch of one is baked in
        return False
    return all(
        whole.shape[:1] == (3,)
        and all(np.allclose(whole[i : i + 1], single[i][name], rtol=1e-4, atol=1e-5) for i in range(3))
        for name, whole in together.items()
    )
