"""Indices of 32 bits: a GPU divides 64 bits in some 30 instructions, and taps and pixels are found by divisions."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from forge_pipeline.codegen.tir.rewriting import realizes

MOST = (1 << 31) - 1


def narrowed(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with indices of 32 bits in each kernel of floats whose sizes are known, and small enough.

    Not where a block is a tensor core's instruction: what places it in memory keeps indices of 64 bits, and TVM does
    not add one to the other.
    """
    fitting = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
        and all(map(_is_small, function.params))
        and not any(realize.block.match_buffers for realize in realizes(function.body))
    }
    changed = module.clone()
    for variable, function in tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule(fitting)).functions_items():
        changed.update_func(module.get_global_var(variable.name_hint), function)
    return changed


def _is_small(parameter: Any) -> bool:
    if not hasattr(parameter.ty, "shape"):  # a size, which it takes where no operand has it
        return False
    sizes = [int(size) if isinstance(size, tirx.IntImm) else MOST + 1 for size in parameter.shape]
    return str(parameter.dtype).startswith("float") and math.prod(sizes) <= MOST
