"""Arithmetic in half precision (`compile.float_arithmetic`): which CPUs have it, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.codegen.options import FloatArithmetic, Options
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.target import Target, described

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule

OPTION: Final = "compile.float_arithmetic"
AUTO: Final = "auto"
GENERATOR: Final = "tiled"
LEAST_LEVEL: Final = 2
"""The optimisation level from which on kernels have layouts of their own, and sums of halves have parts."""

QUANTIZING: Final = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"})
"""Operators of quantized models."""

FLAGS: Final[Mapping[FloatArithmetic, frozenset[str]]] = {
    "float16": frozenset({"asimdhp", "avx512_fp16"}),
    "bfloat16": frozenset({"avx512_bf16", "bf16"}),
}
"""What Linux calls vectors of halves, on ARM and on x86, and dot products of bfloat16."""


def computes_halves(target: Target) -> bool:
    """Return whether the target is a CPU with vectors of halves; all of Apple's have them."""
    return computes(target, "float16")


def computes(target: Target, arithmetic: FloatArithmetic) -> bool:
    """Return whether the target is a CPU with arithmetic in float16 or bfloat16."""
    is_apple = target.libc == "apple" and arithmetic == "float16"
    return target.kind == "llvm" and (is_apple or not FLAGS[arithmetic].isdisjoint(target.cpu_flags))


def widest(target: Target, model: ONNXModule, options: Mapping[str, Any]) -> FloatArithmetic:
    """Return what ``model`` computes in where half precision is wanted as far as target and ``options`` have it."""
    level, generator = options["opt_level"], options.get("generator", AUTO)
    is_float = QUANTIZING.isdisjoint(model.operators)
    fits = is_float and level >= LEAST_LEVEL and generator in (AUTO, GENERATOR)
    return "float16" if fits and computes_halves(target) else "float32"


def check_arithmetic(target: Target, options: Options) -> None:
    """Raise TargetError for half precision on a CPU that has none, ConfigError where other options forbid it."""
    if options.float_arithmetic == "float32":
        return
    if not computes(target, options.float_arithmetic):
        able = ", ".join(each.tag for each in described() if computes(each, options.float_arithmetic))
        is_gpu = target.kind != "llvm"
        raise TargetError(
            where=OPTION,
            expected=f"a CPU with arithmetic in {options.float_arithmetic}: {able}",
            found=f"{target.tag} ({target.cuda_arch if is_gpu else target.cpu}), which has none",
            fix="compile.set_float16=true has a GPU compute in half precision"
            if is_gpu
            else "leave it float32; compile.set_float16=true stores weights in half precision on any CPU",
        )
    if options.generator not in (AUTO, GENERATOR):
        raise ConfigError(
            where=OPTION,
            expected=f"a generator that computes in {options.float_arithmetic}: compile.generator=auto, or {GENERATOR}",
            found=options.generator,
            fix=f"leave {OPTION} float32, or compile.generator auto",
        )
    if options.opt_level < LEAST_LEVEL:
        raise ConfigError(
            where=OPTION,
            expected=f"compile.opt_level {LEAST_LEVEL} or more: below it, sums are one long chain",
            found=f"compile.opt_level={options.opt_level}",
            fix=f"leave {OPTION} float32, or raise the level",
        )


def refuse_quantized(arithmetic: FloatArithmetic) -> ConfigError:
    """Return the refusal of a quantized model."""
    return ConfigError(
        where=OPTION,
        expected="float32 for a quantized model: its products are of integers, and float32 lies between them",
        found=arithmetic,
        fix="leave it float32, or build the model with quantize=none",
    )
