"""A small decoder as onnxruntime-genai's builder writes it: operators of com.microsoft, and a mask that counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.decoders import HEADS, SIZE, VOCABULARY, WIDTH

GROUPS, POSITIONS = 2, 64


def genai_decoder(*, sink: bool = False, told: bool = False, **settings: Any) -> onnx.ModelProto:
    """Return a decoder of one layer with GroupQueryAttention, packed operands, its rotation inside, and an open batch.

    ``told``: how many tokens there are is an input of the model, in the place of a mask. ``settings`` are attributes of
    the attention.
    """
    random = np.random.default_rng(0)
    constants: list[onnx.TensorProto] = []

    def constant(name: str, value: object, dtype: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(name, random.normal(0, 0.3, shape))

    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["attention_mask", constant("one", [1], np.int64)], ["sum"], keepdims=0),
        node("Sub", ["sum", "one"], ["last"]),
        node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["mask_shape"]),
        node("Gather", ["mask_shape", constant("axis", 1, np.int64)], ["all"], axis=0),
        node("Cast", ["all"], ["total_sequence_length"], to=TensorProto.INT32),
    ]
    operands = ["qkv", "", "", "past_key_values.0.key", "past_key_values.0.value", "seqlens_k", "total_sequence_length"]
    operands += [constant("cos", np.cos(angles)), constant("sin", np.sin(angles)), "", ""]
    sinks = [constant("sinks", random.normal(0, 1, HEADS))] if sink else []
    results = ["mixed", "present.0.key", "present.0.value"]
    attention = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1, "scale": 0.25, **settings}
    nodes = [] if told else nodes
    nodes += [
        node("Gather", [weight("words", VOCABULARY, WIDTH), "input_ids"], ["x"]),
        node("SimplifiedLayerNormalization", ["x", constant("g0", np.ones(WIDTH))], ["y"], axis=-1, epsilon=1e-6),
        node("MatMul", ["y", weight("w0", WIDTH, (HEADS + 2 * GROUPS) * SIZE)], ["qkv"]),
        node("GroupQueryAttention", [*operands, *sinks], results, domain="com.microsoft", **attention),
        node("MatMul", ["mixed", weight("w1", WIDTH, WIDTH)], ["z"]),
        node(
            "SkipSimplifiedLayerNormalization", ["x", "z", constant("g1", np.ones(WIDTH))], ["n"],
            domain="com.microsoft", epsilon=1e-6,
        ),
        node("MatMul", ["n", weight("w2", WIDTH, VOCABULARY)], ["logits"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    cache = ["b", GROUPS, "past", "size"]
    inputs = [value("input_ids", TensorProto.INT64, ["b", "s"])]
    if told:
        inputs += [value("seqlens_k", TensorProto.INT32, ["b"]), value("total_sequence_length", TensorProto.INT32, [])]
    else:
        inputs += [value("attention_mask", TensorProto.INT64, ["b", "total"])]
    inputs += [value(f"past_key_values.0.{part}", TensorProto.FLOAT, cache) for part in ("key", "value")]
    outputs = [value("logits", TensorProto.FLOAT, ["b", "s", VOCABULARY])]
    outputs += [
        value(f"present.0.{part}", TensorProto.FLOAT, ["b", GROUPS, "all_tokens", "size"]) for part in ("key", "value")
    ]
    graph = helper.make_graph(nodes, "genai", inputs, outputs, constants)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)
