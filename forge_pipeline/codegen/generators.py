"""The table of code generators, best first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_pipeline.codegen.generator import Generator
from forge_pipeline.codegen.options import Options
from forge_pipeline.registry import Registry
from forge_pipeline.target import Target


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
