"""A rule for each operator, by family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onnx import NodeProto

from forge_pipeline.ir.program_operators import DOMAIN
from forge_pipeline.ir.sizes.operation import Rule
from forge_pipeline.ir.sizes.rules import (
    control,
    elementwise,
    indexing,
    linear,
    normalization,
    program,
    rearranging,
    recurrent,
    reduction,
    shapes,
    slicing,
    windows,
)

RULES: Final[Mapping[str, Rule]] = {
    **control.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **linear.RULES,
    **normalization.RULES,
    **rearranging.RULES,
    **recurrent.RULES,
    **reduction.RULES,
    **shapes.RULES,
    **slicing.RULES,
    **windows.RULES,
}
"""Operators of ONNX itself, by name."""


def rule_of(node: NodeProto) -> Rule | None:
    """Return the rule of a node's operator, None where there is none."""
    if node.domain == DOMAIN:
        return program.RULES.get(node.op_type)
    return RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
