"""Nodes of com.microsoft with operands and attributes that do not fit: refused later by name, never a traceback."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.errors import ForgeError
from forge_pipeline.ir.contrib.signature import LEAST_INPUTS, NEEDED
from forge_pipeline.ir.qdq.to_standard import in_standard
from tests.support.microsoft import model, own

ATTRIBUTES = (
    "activation", "alpha", "axis", "block_size", "causal", "channels_last", "dim", "groups", "interleaved",
    "kv_num_heads", "local_window_size", "mode", "num_branches", "num_heads", "q_num_heads", "qkv_hidden_sizes",
    "rotary_embedding_dim", "scale", "size", "step", "transA", "transBatchA", "unidirectional", "update_rule",
)  # fmt: skip
VALUES = st.one_of(
    st.integers(-2, 8),
    st.floats(-1, 2, width=32),
    st.sampled_from(["", "Relu", "linear"]),
    st.lists(st.integers(0, 4), min_size=1),
)
DTYPES = (np.float32, np.float16, np.int32, np.int64, np.uint8)


@st.composite
def operands(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 12]), max_size=5))
    return np.ones(shape, draw(st.sampled_from(DTYPES)))


@settings(max_examples=250)
@given(st.sampled_from(sorted(LEAST_INPUTS)), st.sampled_from([9, 14, 18, 21]), st.data())
def test_what_does_not_fit_is_no_traceback(operator: str, opset: int, data: st.DataObject) -> None:
    feeds, constants, names = {}, {}, []
    for place in range(LEAST_INPUTS[operator] + data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()) or place == 0:
            kept = feeds if data.draw(st.booleans()) else constants
            kept[f"x{place}"] = data.draw(operands())
            names.append(f"x{place}")
        else:
            names.append("")
    chosen = {*data.draw(st.lists(st.sampled_from(ATTRIBUTES), max_size=6)), *NEEDED.get(operator, ())}
    attributes = {name: data.draw(VALUES) for name in sorted(chosen)}
    outputs = [f"y{place}" for place in range(data.draw(st.integers(1, 4)))]
    net = model([own(operator, names, outputs, **attributes)], feeds, constants, *outputs, opset=opset)
    with contextlib.suppress(ForgeError):
        in_standard(net)
