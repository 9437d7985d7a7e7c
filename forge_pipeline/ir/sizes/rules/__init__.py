"""A rule for each operator, by family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onnx import NodeProto

from forge_pipeline.ir.program_operators import DOMAIN
from forge_pipeline.ir.sizes.operation import Rule
from forge_pipeline.ir.sizes.rules import (
    attention,
    control,
    elementwise,
    indexing,
    linear,
    ml,
    normalization,
    program,
    rearranging,
    recurrent,
    reduction,
    sequences,
    shapes,
    signal,
    slicing,
    vision,
    windows,
)

RULES: Final[Mapping[str, Rule]] = {
    **attention.RULES,
    **control.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **linear.RULES,
    **normalization.RULES,
    **rearranging.RULES,
    **recurrent.RULES,
    **reduction.RULES,
    **sequences.RULES,
    **shapes.RULES,
    **signal.RULES,
    **slicing.RULES,
    **vision.RULES,
    **windows.RULES,
}
"""Operators of ONNX itself, by name."""
DOMAINS: Final[Mapping[str, Mapping[str, Rule]]] = {
    "": RULES,
    "ai.onnx": RULES,
    "ai.onnx.ml": ml.RULES,
    DOMAIN: program.RULES,
}
"""Operators by domain and name."""


def rule_of(node: NodeProto) -> Rule | None:
    """Return the rule of a node's operator, None where there is none."""
    return DOMAINS.get(node.domain, {}).get(node.op_type)
