"""What stays in float inside a quantized model: said in the metadata, since it is what a user can still gain."""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, tirx

from forge_pipeline.codegen.tir import primitives

CONVERSIONS = (
    "quantize", "dequantize", "finish_", "pack", "unpack", "T_concat", "T_reshape", "T_strided_slice", "T_transpose",
    "unfold_depth", "fold_depth", "side_by_side", "to_words",
)  # fmt: skip
"""Beginnings of the names of blocks that go between integers and floats, scale sums of integers, or only copy."""


def is_quantized(module: tvm.IRModule) -> bool:
    """Return whether ``main``, as imported, asks for integers anywhere."""
    found = []

    def visit(expression: object) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.quantize":
            found.append(expression)

    relax.analysis.post_order_visit(module["main"].body, visit)
    return bool(found)


def float_kernels(module: tvm.IRModule) -> set[str]:
    """Return the names of the kernels, not scheduled yet, that compute in floats more than conversions.

    An integer product is not among them, whatever follows it.
    """
    return {
        variable.name_hint
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and _computes_in_float(function)
    }


def _computes_in_float(function: tirx.PrimFunc) -> bool:
    sch = s_tir.Schedule(function)
    found = primitives.blocks(sch)
    if any(primitives.family_of(sch, block).startswith("int8") for block in found):
        return False  # what follows an integer product in its registers costs little
    for block in map(sch.get, found):
        reads = [str(region.source.dtype) for region in block.reads]
        if "float32" in reads and not str(block.name_hint).startswith(CONVERSIONS):
            return True
    return False
