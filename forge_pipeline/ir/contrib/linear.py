"""Products of com.microsoft: with transposed operands, a factor, or an activation behind them.

Source: ONNX Runtime's ContribOperators.md; its matmul_transpose_fusion for operands whose batch lies behind the rows.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from forge_pipeline.ir.contrib.activations import activated
from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

GEMM = ("alpha", "beta", "transA", "transB")
PARAMETERS = ("activation_alpha", "activation_beta", "activation_gamma")


def _product(writer: Writer, node: NodeProto) -> None:
    """FusedMatMul (A, B), and with an activation."""
    op = Emitter(writer, node)
    operands = [
        _turned(op, op.input(place), is_turned=bool(op.integer(f"trans{side}")), batch=op.integer(f"transBatch{side}"))
        for place, side in enumerate("AB")
    ]
    product, alpha = op("MatMul", *operands), op.real("alpha", 1.0)
    if alpha != 1.0:
        product = op("Mul", product, op.number(alpha, product))
    numbers = [op.real(name) for name in PARAMETERS if name in op.attributes]
    op.give(0, activated(op, product, op.text("activation"), numbers))


def _turned(op: Emitter, name: str, *, is_turned: bool, batch: int) -> str:
    """Return an operand as MatMul wants it; ``batch``: its first axis is the rows', the batch follows."""
    if not is_turned and not batch:
        return name
    shape = op.shape(name)
    if shape is None and not batch:
        return op("Einsum", name, equation="...ij->...ji")
    rank = op.rank(name, "an operand to transpose")
    if rank < 2:
        return name
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], 0, axes[-1]]
    if is_turned:
        axes[-2:] = axes[:-3:-1]
    return op.transpose(name, *axes)


def _gemm(writer: Writer, node: NodeProto) -> None:
    """FusedGemm (A, B, C)."""
    op = Emitter(writer, node)
    own = {name: op.attributes[name] for name in GEMM if name in op.attributes}
    product = op("Gemm", *node.input, **own)
    numbers = [op.real(name) for name in PARAMETERS if name in op.attributes]
    op.give(0, activated(op, product, op.text("activation"), numbers))


def _product_and_gelu(writer: Writer, node: NodeProto) -> None:
    """GemmFastGelu (X, W, bias)."""
    op = Emitter(writer, node)
    product = op("MatMul", op.input(0), op.input(1))
    op.give(0, op.tanh_gelu(op("Add", product, op.input(2)) if op.input(2) else product))


def _wide_integers(writer: Writer, node: NodeProto) -> None:
    """MatMulInteger16 (A, B): int16 with int32 sums."""
    op = Emitter(writer, node)
    op.result(0, "MatMul", *(op.cast(op.input(place), TensorProto.INT32) for place in (0, 1)))


def _integer_elements(writer: Writer, node: NodeProto) -> None:
    """MulInteger (A, A_zero_point, B, B_zero_point): elements in int32."""
    op = Emitter(writer, node)
    operands = []
    for value, zero in ((op.input(0), op.input(1)), (op.input(2), op.input(3))):
        wide = op.cast(value, TensorProto.INT32)
        operands.append(op("Sub", wide, op.cast(zero, TensorProto.INT32)) if zero else wide)
    op.result(0, "Mul", *operands)


def _integer_sum(writer: Writer, node: NodeProto) -> None:
    """ReduceSumInteger: sums of bytes in int32."""
    op = Emitter(writer, node)
    wide = op.cast(op.input(0), TensorProto.INT32)
    op.give(0, op.reduce("ReduceSum", wide, op.listed("axes", int), keepdims=bool(op.integer("keepdims", 1))))


def _distances(writer: Writer, node: NodeProto) -> None:
    """CDist (A, B): |a - b|^2 = |a|^2 - 2 a b + |b|^2 of each row with each, and its root."""
    op = Emitter(writer, node)
    metric = op.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unusual(f"the distance {metric}")
    a, b = op.input(0), op.input(1)
    left, right = (op.reduce("ReduceSum", op("Mul", name, name), (1,), keepdims=True) for name in (a, b))
    products = op("Mul", op("MatMul", a, op.transpose(b, 1, 0)), op.number(-2.0, a))
    total = op("Add", op("Add", products, left), op.transpose(right, 1, 0))
    total = op("Max", total, op.number(0.0, a))
    op.give(0, op("Sqrt", total) if metric == "euclidean" else total)


RULES = {
    "CDist": _distances,
    "FusedGemm": _gemm,
    "FusedMatMul": _product,
    "FusedMatMulActivation": _product,
    "GemmFastGelu": _product_and_gelu,
    "MatMulInteger16": _wide_integers,
    "MulInteger": _integer_elements,
    "ReduceSumInteger": _integer_sum,
    "TransposeMatMul": _product,
}
"""How to write out each operator of com.microsoft."""
