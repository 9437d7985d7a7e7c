"""Constant in any of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

STANDARD = ("", "ai.onnx")
"""How models name ONNX's own domain."""

_TYPED: Mapping[str, Any] = MappingProxyType(
    {
        "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
        "value_string": np.object_, "value_strings": np.object_,
    }
)  # fmt: skip


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the value of a Constant, not to be changed; None for a sparse one, and for any other operator."""
    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    for entry in node.attribute:
        if entry.name == "value":
            return entry.t
        if entry.name in _TYPED:
            return numpy_helper.from_array(np.array(helper.get_attribute_value(entry), _TYPED[entry.name]))
    return None
