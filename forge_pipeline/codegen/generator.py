"""The seam between the compilation and its code generators: from a Relax graph to scheduled kernels.

A generator takes a module as the importer made it (``main`` in Relax operators, weights as constants) and
returns one whose ``main`` only calls kernels (``call_tir``, in dataflow form), each kernel scheduled for
the target. What comes after, weights moved out of the code and the virtual machine's bytecode, is the same
for all (``build``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A kernel without a schedule of its own, as slow as plain loops are; in a quantized model, one that is in float.

    ``share`` is its part of the model's floating-point operations, 0..1.
    """

    operator: str
    shape: tuple[int | str, ...]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What a generator returns; ``pass_config`` is the PassContext configuration that its kernels need.

    ``single`` names a function of the module that does as `main` does, for a batch of one only.
    """

    module: tvm.IRModule
    fallbacks: tuple[Fallback, ...]
    pass_config: Mapping[str, Any]
    single: str | None = None


Generator = Callable[["tvm.IRModule", Target, Options], Lowered]
