"""What a model for `package=objects` must be, told before any kernel is made of it."""

from __future__ import annotations

import onnx

from forge_pipeline.codegen.regions.cut import Cut, cut
from forge_pipeline.errors import CompileError
from forge_pipeline.ir.dims import open_extents


def check_linkable(prepared: onnx.ModelProto) -> None:
    """Raise CompileError for open sizes, and for control flow or sizes that data decides.

    Without an operating system there is one memory of a size that is known, and calls one after the other.
    """
    sizes = sorted(open_extents(prepared.graph.input))
    found = f"open sizes: {', '.join(sizes)}" if sizes else None
    if found is None and isinstance(cut(prepared), Cut):
        found = "control flow, or sizes that data decides"
    if found is not None:
        raise CompileError(
            where="package=objects",
            expected="a model whose sizes are all known, without control flow: what runs without an operating system",
            found=f"one with {found}",
            fix="fix sizes with model.dims={name: size}, or choose package=executable or package=library",
        )
