"""The machine code of inner loops, as tests read it."""

from __future__ import annotations

import re

FMA = re.compile(r"\t(vfn?madd|fmla|vdpbf16ps)")
SPILL = re.compile(
    r"\tv?mov\w*\t.*\(%r[sb]p\).*mm|\tv?mov\w*\t%[xyz]mm\d+, .*\(%r[sb]p\)|\t(ldr|str|ldp|stp|ldur|stur)\tq.*\[(sp|x29)"
)
JUMP = re.compile(r"\t(j\w+|b\.\w+|cbn?z|b)\t")
LABEL = re.compile(r"^\.?[A-Za-z_][\w.$]*:")
ALLOWED = 2
"""Moves to or from the stack among dozens of multiply-adds: what LLVM does to a pointer or a constant."""


def hottest_block(assembly: str) -> list[str]:
    """Return the basic block with the most multiply-adds."""
    blocks: list[list[str]] = [[]]
    for line in assembly.splitlines():
        if LABEL.match(line):
            blocks.append([])
        blocks[-1].append(line)
        if JUMP.match(line):
            blocks.append([])
    return max(blocks, key=lambda block: sum(bool(FMA.search(line)) for line in block))
