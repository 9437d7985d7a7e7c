"""Nodes that read small constants alone, computed by ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import AttributeProto, helper
from onnx.reference import ReferenceEvaluator

from forge_pipeline.ir.sizes.operation import Operation
from forge_pipeline.ir.sizes.rules.elementwise import INTEGERS
from forge_pipeline.ir.sizes.value import MOST, Known, of_array

UNSTABLE: Final = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("QuantizeLinear", "DynamicQuantizeLinear"),
    }
)
"""Operators that compute something else each time, or make weights, not sizes."""
SLOW: Final = frozenset(
    {
        *("MaxPool", "AveragePool", "LpPool", "MaxUnpool", "ConvInteger", "Resize", "Upsample", "NonMaxSuppression"),
        *("RoiAlign", "TfIdfVectorizer", "StringSplit", "StringNormalizer", "RegexFullMatch"),
    }
)
"""Operators that no size is made with, and that the reference implementation goes through element by element."""
RAISED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError)
"""What the reference implementation raises for a node that it does not know, or that is not as the standard has it."""
NO_LARGER: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose results are about as large as what they read, and of a size that is known only when they are."""


def evaluated(op: Operation, found: Sequence[Known], opsets: Mapping[str, int]) -> Sequence[Known]:
    """Return a node's results with their elements, where it reads small constants alone and they are small too."""
    if not _wanted(op, found):
        return found
    node = op.node
    given = {name: known.constant for name, known in zip(node.input, op.inputs, strict=True) if known is not None}
    graph = helper.make_graph(
        [node],
        "constant",
        [_value(name, array) for name, array in given.items() if array is not None],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    imports = [helper.make_opsetid("", opsets.get("", opsets.get("ai.onnx", 1)))]
    try:
        evaluator: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
        results = iter(evaluator.run(None, given))
    except RAISED:
        return found
    return [_better(known, next(results)) if name else known for name, known in zip(node.output, found, strict=False)]


def _wanted(op: Operation, found: Sequence[Known]) -> bool:
    node = op.node
    if node.domain not in ("", "ai.onnx") or node.op_type in UNSTABLE | SLOW or not any(node.input):
        return False
    if all(known.contents is not None for known in found) or not all(map(_is_exact, found)):
        return False
    if any(known is not None and not known.is_constant for known in op.inputs):
        return False
    if any(entry.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for entry in node.attribute):
        return False
    return node.op_type in NO_LARGER or all(_is_small(known) for known in found)


def _is_exact(known: Known) -> bool:
    """Return whether every implementation agrees on a result: floats are rounded in many ways."""
    return known.dtype in INTEGERS


def _is_small(known: Known) -> bool:
    count = 1
    for size in known.shape or (MOST + 1,):
        if not isinstance(size, int):
            return False
        count *= size
    return count <= MOST


def _better(known: Known, result: object) -> Known:
    if not isinstance(result, (np.ndarray, np.generic)):
        return known
    array = np.asarray(result)
    if array.size > MOST or array.dtype.kind not in "biuf":
        return known
    return of_array(array, known.dtype or None)


def _value(name: str, array: np.ndarray[Any, Any]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
