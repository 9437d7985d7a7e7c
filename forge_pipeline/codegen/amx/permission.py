"""Whether products are in AMX's tiles: where the target promises them, or a person asks for them.

A process must ask its system for them, and many virtual machines have none.
"""

from __future__ import annotations

from dataclasses import replace

from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.target import Target

GENERATOR = "tiled"
FEATURES = {"float32": ("amx-int8", "multiplies bytes"), "bfloat16": ("amx-bf16", "multiplies bfloat16")}
"""What LLVM calls the products that a model is computed with, by ``compile.float_arithmetic``, and a person does."""
TILES = "amx_tile"
"""What Linux calls the registers; products as LLVM does, with another dash."""


def uses_tiles(target: Target, options: Options) -> bool:
    """Return whether what is compiled for ``target`` with ``options`` may multiply in tiles."""
    return TILES in target.cpu_flags if options.amx is None else options.amx


def needed(target: Target, options: Options) -> Target:
    """Return the target with all flags that a machine must have to run what is compiled with ``options``.

    Raises TargetError where AMX is asked for and the target's CPU has none, ConfigError where the generator does not
    know it.
    """
    if not options.amx:
        return target
    if options.generator not in ("auto", GENERATOR):
        raise ConfigError(
            where="compile.amx",
            expected=f"a generator that uses AMX: compile.generator=auto, or {GENERATOR}",
            found=options.generator,
            fix="leave compile.amx false, or compile.generator auto",
        )
    feature, does = FEATURES.get(options.float_arithmetic, FEATURES["float32"])
    if target.kind != "llvm" or not _has(target, feature):
        raise TargetError(
            where="compile.amx",
            expected=f"a target whose CPU {does} in AMX's tiles, such as intel/sapphire-rapids-amx",
            found=f"{target.tag} ({target.cpu}), which has no {feature}",
            fix="leave compile.amx false: vectors compute the same",
        )
    return replace(target, cpu_flags=tuple(sorted({*target.cpu_flags, TILES, feature.replace("-", "_")})))


def _has(target: Target, feature: str) -> bool:
    if target.arch != "x86_64":
        return False
    machine = target.tvm()  # imports the compiler as it must be imported
    from tvm.target import codegen

    return feature in codegen.llvm_get_cpu_features(machine)
