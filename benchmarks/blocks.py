"""Cycles of compiled kernels on an x86 CPU that is not here, predicted from their machine code.

A kernel's way through its blocks depends on its scalar instructions alone. So these are run, with a counter in each
block and the vector instructions left out, on whatever x86-64 this is; what a block takes, repeated, on the CPU in
question is what `llvm-mca` says of it. Caches, memory and threads count as free, and so does what branches cost.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ITERATIONS = 20
AT_ONCE = 64
"""Blocks in one run of llvm-mca."""
SECONDS = 30
"""A kernel without its vector instructions runs a fraction of that."""
COPY_CYCLES, COPY_BYTES = 15, 32
"""Cycles of a call of memcpy or memset, and what it moves in one more."""

CORRECTIONS: Mapping[str, tuple[str, str]] = {"znver4": (r"^vpdp(busd|wssd)\b", "vfmadd231ps")}
"""Instructions that LLVM's tables have wrong: two cycles for Zen 4's `vpdpbusd`, whose manual says one."""

_LABEL = re.compile(r"[\w.$]+:")
_SECTION = re.compile(r"\.(section|text|data|bss)\b")
_IGNORED = re.compile(r"\.(file|loc|cfi_\w+|size|ident|addrsig\w*)\b")
_ENDS = re.compile(r"(j\w+|ret\w*|call\w*)\b")
_NOT_COUNTED = re.compile(r"(j\w+|call\w*|ret\w*|data16|nop\w*)\b")
_VECTOR = re.compile(r"%[xyz]mm|%k\d")
_EVEX = re.compile(r"%zmm|%k\d|%[xy]mm(1[6-9]|2\d|3[01])|\{")
_MOVES = re.compile(r"vmov(u|a|dq|q|d|h|l|s)\w*(?<!64)(?<!32)\s")
_TO_SCALAR = re.compile(
    r"(?:vmovd|vmovq|vpextr\w|vcvtt?s[sd]2u?si[lq]?|vp?movmsk\w+|kmov\w|vextractps)\s.*, (?P<register>%[er]\w+)$"
)
_COUNT = """\tleaq -256(%rsp), %rsp
\tpushfq
\tincq .Lforge+{at}(%rip)
\tpopfq
\tleaq 256(%rsp), %rsp"""
"""Below the red zone of 128 bytes that a function uses without saying so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How often a kernel's blocks ran, by number, and cycles of what it copies."""

    blocks: Mapping[int, int]
    copying: float


def counted(assembly: str, kernels: Collection[str], folder: Path) -> tuple[dict[str, Counted], list[list[str]]]:
    """Run what is left of ``kernels`` (names without ``_compute_``); return their counts, and all blocks.

    Kernels have no arguments but pointers.
    """
    text, blocks = instrumented(assembly)
    source, program = folder / "kernels.s", folder / "kernels"
    source.write_text(text)
    command = ["gcc", "-O1", "-fno-builtin", "-w", "-rdynamic", "-Wl,--unresolved-symbols=ignore-all", "-Wl,-z,notext"]
    run([*command, "-o", str(program), str(source), str(Path(__file__).with_suffix(".c")), "-lm", "-ldl"])
    found = {}
    for kernel in kernels:
        *counts, last = run([str(program), f"{kernel}_compute_"]).splitlines()
        _, copies, copied = last.split()
        numbers = {int(number): int(times) for number, times in (line.split() for line in counts)}
        found[kernel] = Counted(blocks=numbers, copying=int(copies) * COPY_CYCLES + int(copied) / COPY_BYTES)
    return found, blocks


def instrumented(assembly: str) -> tuple[str, list[list[str]]]:
    """Return scalar instructions alone, with counters, and the instructions of each block that has one."""
    lines: list[str] = []
    blocks: list[list[str]] = []
    is_open = is_debug = False
    for line in assembly.splitlines():
        text = line.strip() if '"' in line else line.split("#")[0].strip()
        if _SECTION.match(text):
            is_debug, is_open = "debug" in text, False
        if is_debug or not text or _IGNORED.match(text) or text.startswith(".Ltmp"):
            continue
        if _LABEL.match(text):
            if text.endswith("_compute_:"):
                lines.append(f"\t.globl {text[:-1]}")
            lines.append(text)
            is_open = False
        elif text.startswith("."):
            lines.append(text)
        else:
            if not is_open:
                lines.append(_COUNT.format(at=8 * len(blocks)))
                blocks.append([])
            blocks[-1].append(text)
            lines.append(_scalar(text))
            is_open = not _ENDS.match(text)
    lines += ["\t.bss", "\t.p2align 6", "\t.globl forge_counters, forge_counters_end", "forge_counters:", ".Lforge:"]
    lines += [f"\t.zero {8 * len(blocks)}", "forge_counters_end:", ""]
    text = "\n".join(line for line in lines if line)
    return text.replace("memcpy@PLT", "forge_copy").replace("memset@PLT", "forge_fill"), blocks


def _scalar(instruction: str) -> str:
    """Return what is run of an instruction: nothing of those that read and write vectors only."""
    moved = _TO_SCALAR.match(instruction)
    if moved and not _VECTOR.search(moved["register"]):
        is_half = moved["register"].startswith("%e") or moved["register"].endswith("d")
        return f"\tmov{'l' if is_half else 'q'} $0, {moved['register']}"
    if instruction[0] in "vk":
        return f"\t{instruction}" if _MOVES.match(instruction) and not _EVEX.search(instruction) else ""
    return "" if _VECTOR.search(instruction) else f"\t{instruction}"


def cycles(blocks: Sequence[Sequence[str]], cpu: str, mca: str, more: Sequence[str] = ()) -> list[float]:
    """Return the cycles of each block on ``cpu``, a name that llvm-mca knows, when it is repeated.

    ``more`` are further arguments for it.
    """
    texts = ["\n".join(_timed(block, cpu)) for block in blocks]
    distinct = [text for text in dict.fromkeys(texts) if text]
    known: dict[str, float] = {"": 0.0}
    for first in range(0, len(distinct), AT_ONCE):
        part = distinct[first : first + AT_ONCE]
        regions = [f"# LLVM-MCA-BEGIN r{at}\n{text}\n# LLVM-MCA-END r{at}" for at, text in enumerate(part)]
        printed = run(
            [mca, *more, f"-mcpu={cpu}", f"-iterations={ITERATIONS}", "-all-views=false", "-summary-view"],
            "\n".join(regions) + "\n",
        )
        for at, total in re.findall(r"Code Region - r(\d+)\s.*?Total Cycles:\s+(\d+)", printed, flags=re.DOTALL):
            known[part[int(at)]] = int(total) / ITERATIONS
    return [known[text] for text in texts]


def _timed(block: Sequence[str], cpu: str) -> list[str]:
    """Return a block as llvm-mca takes it, without jumps, and with addresses in place of symbols."""
    wrong, right = CORRECTIONS.get(cpu, ("$^", ""))
    kept = (instruction for instruction in block if not _NOT_COUNTED.match(instruction))
    return [re.sub(wrong, right, re.sub(r"[\w.$+-]+(@GOTPCREL)?\(%rip\)", "64(%rsp)", text)) for text in kept]


def run(command: Sequence[str], text: str = "") -> str:
    """Return what a program prints; ends this one, saying why, where it fails or is not there."""
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not installed")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:2])}: exit code {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout
