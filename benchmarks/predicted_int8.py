"""Cycles of compiled int8 models beside our own float code, predicted for x86 CPUs that are not here.

    python -m benchmarks.predicted_int8 --models ../shared/models --cpu icelake-server sapphirerapids znver4

How is in `benchmarks.blocks`; it takes x86-64 with AVX2, gcc, and `llvm-mca` (part of LLVM; newer ones know more
CPUs). One thread, all kernels that a call runs. The last column adds the time to read weights that are larger than half
of the second cache from memory, at four bytes a cycle.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.blocks import counted, cycles
from benchmarks.latency_int8 import FILES, MADE, OPTIONS, both

if TYPE_CHECKING:
    import onnx

    from forge_pipeline.target import Target

BYTES_A_CYCLE = 4
KINDS = ("int8", "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """A model's machine code, how often it calls each kernel, and bytes of weights that a call reads from memory."""

    assembly: str
    calls: Counter[str]
    from_memory: int


def main(arguments: Sequence[str]) -> int:
    """Predict, print a table and write what was predicted."""
    from forge_pipeline.target import Target

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with the models that are files")
    parser.add_argument("--target", default="intel/sapphire-rapids", help="what to compile for")
    parser.add_argument("--cpu", nargs="+", default=["icelake-server"], help="CPUs as llvm-mca names them")
    parser.add_argument("--mca", default="llvm-mca", help="the program")
    parser.add_argument("--only", nargs="*", default=[*FILES, *MADE], choices=[*FILES, *MADE])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    target, rows = replace(Target.from_tag(chosen.target), cores=2), {}
    with tempfile.TemporaryDirectory(prefix="predicted-int8-") as folder:
        for name in chosen.only:
            sources = both(name, chosen.models, Path(folder))
            rows[name] = {kind: predict(sources[kind], target, chosen.cpu, chosen.mca, Path(folder)) for kind in KINDS}
            print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    print(table(rows, chosen.cpu))
    if chosen.output:
        chosen.output.write_text(json.dumps({"target": chosen.target, "cycles": rows}, indent=2, sort_keys=True) + "\n")
    return 0


def predict(model: onnx.ModelProto, target: Target, cpus: Sequence[str], mca: str, folder: Path) -> dict[str, float]:
    """Return the cycles of one call on each of the CPUs, and those to read weights from memory."""
    compiled = kernels(model, target)
    found, blocks = counted(compiled.assembly, compiled.calls, folder)
    result: dict[str, float] = {"from memory": compiled.from_memory / BYTES_A_CYCLE}
    for cpu in cpus:
        cost = cycles(blocks, cpu, mca)
        result[cpu] = sum(
            calls * (found[name].copying + sum(times * cost[at] for at, times in found[name].blocks.items()))
            for name, calls in compiled.calls.items()
        )
    return result


def kernels(model: onnx.ModelProto, target: Target) -> Kernels:
    """Compile a model's kernels to assembly; those that prepare weights when it is loaded are left out."""
    import tvm
    from tvm import relax, tirx

    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.memory.prepack import PREPARES
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.codegen.tir.math.vector_math import install

    install()
    lowered = lower(import_model(prepare(model)), target, OPTIONS)
    calls: Counter[str] = Counter()
    sizes: dict[Any, int] = {}
    from_memory = 0
    for binding in (each for block in lowered.module[lowered.sized].body.blocks for each in block.bindings):
        call = binding.value
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
            continue
        kernel = call.args[0]
        weights = sum(_constant_bytes(argument, sizes) for argument in call.args[1])
        if PREPARES in (lowered.module[kernel].attrs or {}):
            sizes[binding.var] = _bytes(binding.var.ty)
            continue
        calls[kernel.name_hint] += 1
        from_memory += weights if weights > target.l2_kib * 1024 // 2 else 0
    functions = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in lowered.module.functions_items()
        if isinstance(function, tirx.PrimFunc) and variable.name_hint in calls
    }
    with target.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(lowered.pass_config)):
        built = pipeline.build(tvm.IRModule(functions), target)
    return Kernels(assembly=str(built.inspect_source("asm")), calls=calls, from_memory=from_memory)


def _constant_bytes(argument: Any, prepared: Mapping[Any, int]) -> int:
    """Return the bytes of a constant, or of one that is prepared when the library is loaded; zero for the others."""
    from tvm.ir import GenericConst

    return _bytes(argument.ty) if isinstance(argument, GenericConst) else prepared.get(argument, 0)


def _bytes(type_: Any) -> int:
    import tvm

    bits = int(tvm.DataType(str(type_.dtype)).bits)
    return math.prod(int(extent) for extent in type_.shape) * bits // 8


def table(rows: Mapping[str, Mapping[str, Mapping[str, float]]], cpus: Sequence[str]) -> str:
    """Return megacycles and their ratios as a Markdown table."""
    heads = [f"{cpu}: {what}" for cpu in cpus for what in ("int8, float (Mcycles)", "int8 / float", "with memory")]
    lines = [["model", *heads], ["---", *["---:"] * len(heads)]]
    ratios: dict[tuple[str, bool], list[float]] = {}
    for name, row in rows.items():
        cells = []
        for cpu in cpus:
            cells.append(", ".join(f"{row[kind][cpu] / 1e6:.3g}" for kind in KINDS))
            for memory in (False, True):
                int8, float32 = (row[kind][cpu] + memory * row[kind]["from memory"] for kind in KINDS)
                ratios.setdefault((cpu, memory), []).append(int8 / float32)
                cells.append(f"{int8 / float32:.2f}")
        lines.append([name, *cells])
    means = [f"{statistics.geometric_mean(ratios[cpu, memory]):.2f}" for cpu in cpus for memory in (False, True)]
    lines.append(["geometric mean", *(cell for at in range(len(cpus)) for cell in ("", *means[2 * at : 2 * at + 2]))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
