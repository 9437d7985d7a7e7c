"""Draw compile.svg and kernel.svg: `python docs/pictures.py`, after the list of steps has changed."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from forge_pipeline.codegen.lowering import LOWERING

STYLE = """
.box{fill:#fff;stroke:#334155;stroke-width:1.5}.group{fill:none;stroke:#cbd5e1}
text{fill:#0f172a;text-anchor:middle}.note{fill:#475569;font-size:12px}.left{text-anchor:start}
.line{stroke:#334155;stroke-width:1.5;fill:none;marker-end:url(#a)}
@media (prefers-color-scheme: dark){.box{fill:#1e293b;stroke:#cbd5e1}.group{stroke:#475569}text{fill:#f1f5f9}
.note{fill:#cbd5e1}.line{stroke:#cbd5e1}.head{fill:#cbd5e1}}
"""
HEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="head" d="M0 0 8 4 0 8z" fill="#334155"/></marker></defs>'
)
GROUPS = (
    ("operators", "codegen/onnx_import, layout", ("import", "entries", "graph")),
    ("kernels without loops", "codegen/float32, int8", ("layout", "legalize", "fuse")),
    ("kernels with loops", "codegen/tir", ("schedule", "rewrite", "join")),
    ("calls with addresses", "codegen/memory", ("weights", "memory", "finalize")),
    ("bytes", "codegen/program, LLVM, LLD", ("program", "code", "link")),
)
LIFE = (
    ("tile", "the machine model", "6 pixels x 2 vectors: the fewest cycles expected"),
    ("template", "a family's module", "convolve(image, weight): sums, and what they become"),
    ("block with a name", "04-layout.txt", "for n, row, p, out, ..: forge.family = direct"),
    ("fused", "06-fuse.txt", "fused_conv2d_add_relu: four blocks, one kernel"),
    ("loops", "07-schedule.txt", "parallel, unroll, vectorized; sums stay in registers"),
    ("rewritten", "08-rewrite.txt", "padding peeled, tails moved, instructions put in"),
    ("assembly", "14-code.txt", "12 vfmadd231ps for 8 loads"),
    ("called", "13-program.txt", "CALL __tvm_ffi_fused_conv2d_add_relu(t1, t2, t3, t4)"),
)


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """Return words at a place."""
    shown = f' class="{kind}"' if kind else ""
    return f'<text{shown} x="{x}" y="{y}">{escape(words)}</text>'


def box(x: int, y: int, width: int, words: str) -> str:
    """Return a box with words in it."""
    return f'<rect class="box" x="{x}" y="{y}" width="{width}" height="36" rx="6"/>' + text(
        x + width // 2, y + 23, words
    )


def arrow(path: str) -> str:
    """Return a line with a head."""
    return f'<path class="line" d="{path}"/>'


def picture(width: int, height: int, label: str, parts: list[str]) -> str:
    """Return a whole picture, for dark and light pages."""
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="14" role="img" aria-label="{escape(label)}">'
    )
    return "\n".join([start, f"<style>{STYLE}</style>", HEAD, *parts, "</svg>", ""])


def compilation() -> str:
    """Return the steps of the lowering, grouped by what there is after them."""
    drawn = [name for _, _, names in GROUPS for name in names]
    if drawn != [step.name for step in LOWERING]:
        raise SystemExit("docs/pictures.py: GROUPS has other steps than codegen/lowering.py")
    parts = [text(56, 30, "ONNX model"), arrow("M56 38V64")]
    for row, (title, place, names) in enumerate(GROUPS):
        y = 52 + 84 * row
        parts += [f'<rect class="group" x="10" y="{y}" width="700" height="64" rx="10"/>']
        parts += [text(400, y + 28, title, "left"), text(400, y + 46, place, "note left")]
        for column, name in enumerate(names):
            x = 20 + 124 * column
            parts.append(box(x, y + 14, 92, name))
            if column:
                parts.append(arrow(f"M{x - 32} {y + 32}H{x - 2}"))
        last = 66 + 124 * (len(names) - 1)
        if row + 1 < len(GROUPS):
            parts.append(arrow(f"M{last} {y + 50}V{y + 74}H66V{y + 96}"))
        else:
            parts += [arrow(f"M{last} {y + 50}V{y + 84}"), text(last, y + 102, "model_library.so")]
    return picture(720, 510, "Inside compile: " + ", ".join(drawn), parts)


def kernel() -> str:
    """Return a kernel's life, from a template to its call."""
    parts = []
    for row, (title, place, example) in enumerate(LIFE):
        y = 12 + 62 * row
        parts += [box(10, y, 150, title), text(180, y + 15, place, "note left"), text(180, y + 33, example, "left")]
        if row:
            parts.append(arrow(f"M85 {y - 26}V{y - 2}"))
    return picture(620, 500, "A kernel's life: " + ", ".join(title for title, _, _ in LIFE), parts)


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "compile.svg").write_text(compilation())
    (folder / "kernel.svg").write_text(kernel())
