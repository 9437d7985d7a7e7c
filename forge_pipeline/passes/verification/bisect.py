"""The first value on which two versions of a model disagree.

Values that keep their name keep their meaning, so what both models have can be compared in the order in which it is
computed; everything before the first difference is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, ValueInfoProto

from forge_pipeline.passes.contract import Arrays, Tolerance
from forge_pipeline.passes.verification.compare import bitwise, close
from forge_pipeline.passes.verification.interpreter import RUN_ERRORS, Interpreter


def first_difference(
    before: ModelProto, after: ModelProto, inputs: Sequence[Arrays], allowed: Tolerance | None
) -> str | None:
    """Return a sentence that names the first differing value and its node; None where no shared value differs."""
    producers = {name: node for node in after.graph.node for name in node.output if name}
    shared = [name for node in before.graph.node for name in node.output if name in producers]
    try:
        run_before, run_after = (
            Interpreter(_exposed(before, shared), shared),
            Interpreter(_exposed(after, shared), shared),
        )
        for fed in inputs:
            for name, want, got in zip(shared, run_before(fed), run_after(fed), strict=True):
                difference = bitwise(name, want, got) if allowed is None else close(name, want, got, allowed)
                if difference.failed:
                    node = producers[name]
                    return f"the first value that differs is {difference}, computed by {node.op_type} {node.name!r}"
    except RUN_ERRORS as error:
        return f"the first value that differs was not found: {str(error).splitlines()[0]}"
    return None


def _exposed(model: ModelProto, names: list[str]) -> ModelProto:
    """Return a copy of ``model`` with more outputs, whose types are left to the interpreter."""
    copy = ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in present)
    return copy
