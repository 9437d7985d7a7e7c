"""What quantization does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto

    from forge_pipeline.ir import ONNXModule


def whole(model: ONNXModule, action: str) -> ModelProto:
    """Return the model with its weights inside. Raises ModelError where they are memory-mapped."""
    if model.is_mapped:
        raise ModelError(
            where=action,
            expected="a model whose weights are inside model.onnx: they are worked on in memory",
            found=f"{model.outside_bytes} bytes of weights outside, more than load.inline_bytes",
            fix="shrink its weights alone with quantize=weights, build it as it is with quantize=none "
            "(compile.set_float16=true halves its library), quantize it with the tool that exports it, or raise "
            "load.inline_bytes where it is below 2 GiB",
        )
    return model.mod
