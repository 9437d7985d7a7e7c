"""ONNX's Attention and Swish in Relax: products, a softmax and elementwise operators, which schedules know.

The equations are those of the ONNX operator reference, Attention-23 and Swish-24. TVM's converter named Attention is
for another domain's operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

    from forge_pipeline.codegen.onnx_import.facts import Facts

CONVERTED = {"scale", "q_num_heads", "kv_num_heads"}
WITHOUT_EFFECT = {"is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0}
INPUTS = ("query", "key", "value", "mask")  # what else there is carries state, or lengths of each sequence


def convert_attention(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return ``softmax(scale q kT + mask) v`` over [batch, heads, tokens, size], or over heads joined in one axis."""
    from tvm import relax
    from tvm.relax import op

    def emit(value: Any) -> Any:
        return builder.normalize(value)

    query, key, value = inputs[:3]
    mask = inputs[3] if len(inputs) > 3 else None
    joined = len(query.ty.shape.values) == 3
    if joined:
        heads = int(attributes["q_num_heads"])
        query, key, value = (emit(op.permute_dims(_apart(builder, x, heads), [0, 2, 1, 3])) for x in inputs[:3])
    dtype, size = str(query.ty.dtype), int(query.ty.shape.values[-1])
    scale = float(attributes.get("scale", 1 / math.sqrt(size)))
    scores = emit(op.matmul(query, emit(op.permute_dims(key, [0, 1, 3, 2]))))
    scores = emit(op.multiply(scores, relax.const(scale, dtype)))
    if mask is not None:
        scores = emit(op.add(scores, mask))
    mixed = emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), value))
    if not joined:
        return mixed
    turned = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
    batch, tokens, heads, width = turned.ty.shape.values
    return op.reshape(turned, (batch, tokens, heads * width))


def _apart(builder: Any, value: Any, heads: int) -> Any:
    from tvm.relax import op

    batch, tokens, width = value.ty.shape.values
    return builder.normalize(op.reshape(value, (batch, tokens, heads, int(width) // heads)))


def convert_swish(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return ``x sigmoid(alpha x)``."""
    from tvm import relax
    from tvm.relax import op

    value, alpha = inputs[0], float(attributes.get("alpha", 1.0))
    if alpha == 1.0:
        return op.nn.silu(value)
    scaled = builder.normalize(op.multiply(value, relax.const(alpha, str(value.ty.dtype))))
    return op.multiply(value, builder.normalize(op.sigmoid(scaled)))


def attention_trap(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    """Yield what of Attention is not converted."""
    given = {entry.name: entry.f if entry.HasField("f") else entry.i for entry in node.attribute}
    for name in sorted(given.keys() - CONVERTED):
        if given[name] != WITHOUT_EFFECT.get(name):
            yield f"{name} is set"
    if any(node.input[len(INPUTS) :]) or any(node.output[1:]):
        yield "keys and values of earlier calls"
    if given.get("q_num_heads") != given.get("kv_num_heads"):
        yield "fewer heads of keys than of queries"
    shapes = [facts.shapes.get(name) for name in node.input[:3]]
    if any(shape is None or shape[-1] is None for shape in shapes):
        yield "its shape is not known"
    elif len(shapes[0] or ()) == 4 and len({shape[1:2] for shape in shapes if shape is not None}) > 1:
        yield "fewer heads of keys than of queries"
    if len(node.input) > 3 and node.input[3] and facts.dtype(node.input[3]) != facts.dtype(node.input[0]):
        yield "a mask of another type"
