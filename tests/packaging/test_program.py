"""What may be linked into an image is known, and what may not is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import pytest

from forge_pipeline.codegen.build import build, check
from forge_pipeline.errors import CompileError
from forge_pipeline.packaging.program import straight
from forge_pipeline.target import Target
from tests.support.native import TILED, branches, convolutions, open_sizes


def program_of(model: onnx.ModelProto) -> bytes:
    return bytes(build(model, Target.from_tag("x86-64/v3"), replace(TILED, relocatable=True)).program)


def with_batch(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    return model


def test_a_program_of_known_sizes_is_read() -> None:
    found = straight(program_of(with_batch(convolutions(), 2)))
    assert [(port.name, port.dtype, port.shape, port.size) for port in found.inputs] == [
        ("x", "float32", (2, 3, 24, 24), 4 * 2 * 3 * 24 * 24)
    ]
    assert [(port.dtype, port.shape) for port in found.outputs] == [("float32", (2, 5))]
    assert found.main.scratch % 64 == 0
    assert found.main.most_arguments >= 2
    assert found.prepare is not None  # Winograd's transform of the weights
    assert found.prepare.kept > 0


@pytest.mark.parametrize(
    ("model", "reason"), [(convolutions, "open sizes: n"), (open_sizes, "open sizes"), (branches, "control flow")]
)
@pytest.mark.parametrize("ask", [build, check])
def test_what_does_not_run_straight_is_refused_before_any_kernel_is_made(
    ask: Callable[..., Any], model: Callable[[], onnx.ModelProto], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_pipeline.codegen.backend.imported", None)
    with pytest.raises(CompileError, match=reason):
        ask(model(), Target.from_tag("x86-64/v3"), replace(TILED, relocatable=True))


def test_a_program_with_open_sizes_is_refused() -> None:
    library = build(convolutions(), Target.from_tag("x86-64/v3"), TILED)
    with pytest.raises(CompileError, match="open sizes: n"):
        straight(library.program)
