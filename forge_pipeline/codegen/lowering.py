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
from forge_pipeline.registry import Registry
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of GENERATORS: the kinds of target that it compiles for, and its code, imported when it is used."""

    kinds: tuple[str, ...]
    load: Callable[[], Generator]


def _stock() -> Generator:
    from forge_pipeline.codegen.stock import lower

    return lower


def _tiled() -> Generator:
    from forge_pipeline.codegen.tiled import lower

    return lower


GENERATORS = Registry(
    "code generator",
    {
        "tiled": Row(kinds=("llvm",), load=_tiled),
        "stock": Row(kinds=("llvm", "cuda"), load=_stock),
    },
)
"""Best first: `auto` takes the first row that serves the target's kind."""

AUTO = "auto"


def pick_generator(options: Options, target: Target) -> Generator:
    """Return the generator that ``options`` name; ConfigError where there is none, or none for this target."""
    fitting = {name: row for name, row in GENERATORS.items() if target.kind in row.kinds}
    if options.generator == AUTO:
        return next(iter(fitting.values())).load()
    GENERATORS.pick(options.generator, where="compile.generator")
    return (
        Registry(f"code generator for {target.kind}", fitting).pick(options.generator, where="compile.generator").load()
    )
