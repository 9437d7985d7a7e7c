"""The first value on which two versions of a model disagree.

Values that keep their name keep their meaning, so what both models have can be compared in the order in which it is
computed; everything before the first difference is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from forge_pipeline.passes.contract import Arrays, Tolerance
from forge_pipeline.passes.verification.compare import bitwise, close
from forge_pipeline.passes.verification.exact import REFUSALS, exact_interpreter, reason


def first_difference(
    before: ModelProto, after: ModelProto, inputs: Sequence[Arrays], allowed: Tolerance | None
) -> str | None:
    """Return a sentence that names the first differing value and its node; None where no shared value differs."""
    producers = {name: node for node in after.graph.node for name in node.output if name}
    shared = [name for node in before.graph.node for name in node.output if name in producers]
    try:
        run_before, run_after = (exact_interpreter(model, taps=shared) for model in (before, after))
        for fed in inputs:
            wanted, found = run_before(fed, shared), run_after(fed, shared)
            for name in shared:
                want, got = wanted[name], found[name]
                difference = bitwise(name, want, got) if allowed is None else close(name, want, got, allowed)
                if difference.failed:
                    node = producers[name]
                    return f"the first value that differs is {difference}, computed by {node.op_type} {node.name!r}"
    except REFUSALS as error:
        return f"the first value that differs was not found: {reason(error)}"
    return None
