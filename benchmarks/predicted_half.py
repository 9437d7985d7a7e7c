"""Cycles of models in half precision beside float32, predicted for an ARM CPU that is not here.

    python -m benchmarks.predicted_half ../shared/models/squeezenet/squeezenet_fp32.onnx --cpu neoverse-n1

QEMU's user mode runs `forge-run` (`make runtime`), and writes down each block of instructions that it translates and
each time that one runs; a call is what two calls run more than one. What a block takes, repeated, is what `llvm-mca`
says. Its table of the Neoverse N1 is that of the Cortex-A76's sibling; `cortex-a76` has an older core's. It takes LLVM
16 or later. Caches, memory, threads and what branches cost count as free. The second numbers add the weights where they
are more than half of the second cache: they come from memory, at four bytes a cycle. One thread.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.blocks import cycles, run

if TYPE_CHECKING:
    from forge_pipeline.target import Target

KINDS = ("float32", "float16")
BYTES_A_CYCLE = 4
_STARTS = re.compile(r"0x([0-9a-f]+):  ([0-9a-f]{8}) ")
_RUNS = re.compile(r"Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")
_ENDS = re.compile(r"\s*(b|b\..*|bl|blr|br|ret|cbn?z|tbn?z|svc|udf|\.inst)\b")


def main(arguments: Sequence[str]) -> int:
    """Predict, and print a table."""
    from forge_pipeline.target import Target

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="ONNX files whose sizes are known")
    parser.add_argument("--target", default="raspberry-pi/5", help="what to compile for")
    parser.add_argument("--cpu", default="neoverse-n1", help="the CPU as llvm-mca names it")
    parser.add_argument("--mca", default="llvm-mca", help="the program; llvm-mc lies beside it")
    parser.add_argument("--qemu", default="qemu-aarch64", help="the emulator")
    chosen = parser.parse_args(arguments)
    target = Target.from_tag(chosen.target)
    print("| model | float32, float16: Mcycles | ratio | with memory | ratio | weights, bytes |\n" + "|---" * 6 + "|")
    for path in chosen.models:
        found = {kind: predict(path, target, kind, chosen) for kind in KINDS}
        bare, memory, sizes = ([found[kind][at] for kind in KINDS] for at in range(3))
        print(
            f"| {path.stem} | {bare[0] / 1e6:.3g}, {bare[1] / 1e6:.3g} | {bare[1] / bare[0]:.2f} "
            f"| {memory[0] / 1e6:.3g}, {memory[1] / 1e6:.3g} | {memory[1] / memory[0]:.2f} | {sizes[0]}, {sizes[1]} |",
            flush=True,
        )
    return 0


def predict(path: Path, target: Target, kind: str, tools: argparse.Namespace) -> tuple[float, float, int]:
    """Return the cycles of a call, those with weights from memory, and the bytes of the weights."""
    library = compiled(path, target, kind)
    with tempfile.TemporaryDirectory(prefix="predicted-half-") as folder:
        place = Path(folder) / "model_library.so"
        place.write_bytes(library)
        size = weights_of(place)
        once, twice = (executed(place, runs, tools.qemu) for runs in (1, 2))
    calls = Counter({block: times - once[block] for block, times in twice.items() if times > once[block]})
    blocks = list(calls)
    cost = cycles(disassembled(blocks, tools.mca), tools.cpu, tools.mca, ("-mtriple=aarch64",))
    total = sum(calls[block] * each for block, each in zip(blocks, cost, strict=True))
    reading = size / BYTES_A_CYCLE if size > target.l2_kib * 1024 // 2 else 0
    return total, total + reading, size


def compiled(path: Path, target: Target, kind: str) -> bytes:
    """Return the library of a folded model."""
    from benchmarks.latency_int8 import OPTIONS
    from forge_pipeline.codegen.build import build
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.locate import conf_dir
    from forge_pipeline.passes.files import read_recipe
    from forge_pipeline.passes.pipeline import apply, plan
    from forge_pipeline.passes.table import table

    recipe = read_recipe(conf_dir() / "fold" / "full.yaml")
    model = apply(ONNXModule.from_file(path).mod, plan(recipe.passes, table(recipe.imports), where="fold"), None).model
    return build(model, target, replace(OPTIONS, float_arithmetic=kind)).to_bytes()  # type: ignore[arg-type]


def weights_of(library: Path) -> int:
    """Return the bytes of a library's weights section."""
    from forge_pipeline.runtime.bundle import Library

    return len(Library.from_bytes(library.read_bytes()).weights)


def executed(library: Path, runs: int, qemu: str) -> Counter[tuple[str, ...]]:
    """Return how often each block, as the words of its instructions, runs in a process of ``runs`` more calls."""
    program = Path(__file__).parent.parent / "runtime/out/aarch64/forge-run"
    command = [qemu, "-cpu", "max", "-d", "in_asm,exec,nochain", "-D", "/dev/stderr", str(program), str(library)]
    times, words, at = Counter[str](), dict[str, list[str]](), ""
    with subprocess.Popen(
        [*command, "--runs", str(runs)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if match := _RUNS.match(line):
                times[match[1].lstrip("0")] += 1
            elif line.startswith("IN:"):
                at = ""
            elif match := _STARTS.match(line):
                at = at or match[1]
                if match[1] == at:
                    words[at] = []
                words[at].append(match[2])
    if process.returncode:
        sys.exit(f"{program.name}: exit code {process.returncode}; is it built (make runtime)?")
    found = Counter[tuple[str, ...]]()
    for start, count in times.items():
        found[tuple(words[start])] += count
    return found


def disassembled(blocks: Sequence[tuple[str, ...]], mca: str) -> list[list[str]]:
    """Return the instructions of blocks, without those that end them."""
    distinct = sorted({word for block in blocks for word in block})
    text = "\n".join(" ".join(f"0x{word[at : at + 2]}" for at in (6, 4, 2, 0)) for word in distinct) + "\n"
    program = str(Path(mca).with_name(Path(mca).name.replace("llvm-mca", "llvm-mc")))
    printed = run([program, "-disassemble", "-triple=aarch64", "-mattr=+v8.2a,+fullfp16,+lse,+dotprod"], text)
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.strip().startswith(".")]
    if len(lines) != len(distinct):
        sys.exit(f"{program}: {len(lines)} instructions for {len(distinct)} words")
    names = dict(zip(distinct, lines, strict=True))
    return [[names[word] for word in block if not _ENDS.match(names[word])] for block in blocks]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
