"""`package=objects`: an archive and a header for a linker, which run one model without an operating system.

The archive has the model's kernels, a table of them with the program and the weights in read-only data, and of the
native runtime what runs a program without heap, files and threads. It needs nothing from a C library.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge_pipeline.codegen.link import since, undefined, zig
from forge_pipeline.content import pieces
from forge_pipeline.errors import CompileError
from forge_pipeline.locate import runtime_dir
from forge_pipeline.packaging.program import HEAD, WORD, Function, Port, Straight, straight
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

ALIGNMENT: Final = 64
RUNTIME_STACK: Final = 512
"""What the runtime around kernels, and the functions of <math.h> below them, take of a Cortex-M's stack at most."""
SOURCES: Final = ("bare.zig", "bare_math.zig")
PLAIN: Final = ("-O", "ReleaseSmall", "-fstrip", "-ffunction-sections", "-fdata-sections", "-fno-unwind-tables")
C_TYPES: Final = {
    "bool": "uint8_t",
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What a linker and a compiler need: `libmodel.a` and `model.h`."""

    archive: bytes
    header: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parts of a session's memory start, in bytes; values between kernels are at 0."""

    kept: int
    workspace: int
    tables: int
    end: int


def package_objects(library: Library, target: Target) -> Objects:
    """Return the archive and the header of ``library``, whose code is relocatable.

    Raises CompileError for a program that is not straight, and where the linker or the compiler fails.
    """
    program = straight(library.program)
    layout = _layout(program, int(library.metadata["compile"]["workspace"]), 4 if target.libc == "none" else 8)
    with tempfile.TemporaryDirectory(prefix="forge-objects-") as name:
        folder = Path(name)
        (folder / "kernels.o").write_bytes(library.elf)
        (folder / "program.bin").write_bytes(program.words)
        with (folder / "weights.bin").open("wb") as stream:
            stream.writelines(pieces(library.weights))
        (folder / "model.c").write_text(_source(program, layout, target), "utf-8")
        archive = _archive(folder, target)
    return Objects(archive=archive, header=_header(program, layout, target, _stack(library)).encode())


def _layout(program: Straight, workspace: int, pointer: int) -> Layout:
    functions = [function for function in (program.main, program.prepare) if function is not None]
    scratch = max(function.scratch for function in functions)
    kept = program.prepare.kept if program.prepare else 0
    tables = scratch + kept + workspace
    prepared = -(-_prepared(program) * pointer // 16) * 16
    most = max(function.most_arguments for function in functions)
    rows = max(len(function.shapes) for function in functions)
    end = tables + prepared + 16 * most + rows * (48 if pointer == 8 else 40)
    return Layout(kept=scratch, workspace=scratch + kept, tables=tables, end=-(-end // ALIGNMENT) * ALIGNMENT)


def _prepared(program: Straight) -> int:
    return len(program.prepare.results) if program.prepare else 0


def _source(program: Straight, layout: Layout, target: Target) -> str:
    """Return the tables in C: what `bare.zig` calls Model."""
    is_macho = target.libc == "apple"
    section = "__TEXT,__const" if is_macho else '.rodata.forge,\\"a\\"'
    before, after = ("_", ".text") if is_macho else ("", ".previous")
    code, weights = f"{before}forge_linked_program", f"{before}forge_linked_weights"
    functions = [function for function in (program.main, program.prepare) if function is not None]
    lines = [
        "#include <stdint.h>",
        "#include <stddef.h>",
        "struct function { const char *rows; uint32_t row_count, code_words; const char *code; };",
        "typedef int kernel(void *, const void *, int32_t, void *);",
        *(f"kernel {name};" for name in program.kernels),
        f"static kernel *const kernels[] = {{{', '.join([*program.kernels, '0'])}}};",
        f"static const uint32_t offsets[] = {{{', '.join(map(str, [*program.offsets, 0]))}}};",
        "extern const char forge_linked_program[], forge_linked_weights[];",
        f'__asm__(".section {section}\\n.p2align 6\\n{code}:\\n.incbin \\"program.bin\\"\\n"',
        f'        ".p2align 6\\n{weights}:\\n.incbin \\"weights.bin\\"\\n.p2align 6\\n{after}\\n");',
        "const struct {",
        "    kernel *const *kernels;",
        "    const uint32_t *offsets;",
        "    const char *weights, *constants;",
        "    struct function main, prepare;",
        "    size_t memory, kept, workspace, tables;",
        "    uint32_t inputs, prepared, most_arguments;",
        "} forge_linked_model = {",
        f"    kernels, offsets, forge_linked_weights, forge_linked_program + {program.constants},",
        f"    {_function(program.main)}, {_function(program.prepare)},",
        f"    {layout.end}, {layout.kept}, {layout.workspace}, {layout.tables},",
        f"    {len(program.inputs)}, {_prepared(program)}, {max(function.most_arguments for function in functions)},",
        "};",
    ]
    return "\n".join(lines) + "\n"


def _function(function: Function | None) -> str:
    if function is None:
        return "{0, 0, 0, 0}"
    rows, code = (f"forge_linked_program + {HEAD + WORD * word}" for word in (function.rows, function.code))
    return f"{{{rows}, {len(function.shapes)}, {function.code_words}, {code}}}"


def _archive(folder: Path, target: Target) -> bytes:
    machine = machine_options(target)
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"), "ZIG_LOCAL_CACHE_DIR": str(folder / "cache")}
    zig(["cc", *machine, "-Os", "-ffreestanding", "-c", "model.c", "-o", "model.o"], target.tag, caches, folder)
    members = ["kernels.o", "model.o"]
    for number, source in enumerate(SOURCES):
        whole, parts = folder / f"{number}.a", folder / f"parts{number}"
        parts.mkdir()
        runtime = ["-fcompiler-rt"] if number == 0 else []
        options: list[str | Path] = [*machine, *PLAIN, *runtime, f"-femit-bin={whole}", runtime_dir() / "src" / source]
        zig(["build-lib", "-j1", "-static", *options], target.tag, caches, folder)
        zig(["ar", "x", whole], target.tag, caches, parts)
        members += sorted(str(path.relative_to(folder)) for path in parts.iterdir())
    zig(["ar", "rcsD", "libmodel.a", *members], target.tag, caches, folder)
    missing = undefined(folder / "libmodel.a", target, entry="forge_model_run")
    if missing:
        raise CompileError(
            where=f"package=objects for {target.tag}",
            expected="kernels that call nothing beside <math.h> and memcpy",
            found=f"calls of {', '.join(missing)}",
            fix="compile without the operator that needs it, or choose package=executable",
        )
    return (folder / "libmodel.a").read_bytes()


def machine_options(target: Target) -> list[str]:
    """Return what zig calls the target: an instruction set that all of its triple have, the CPU where it is known."""
    if target.libc == "apple":
        return ["-target", since(target)]
    if target.libc != "none":
        return ["-target", f"{target.arch}-linux-none", "-fPIC"]
    abi = target.triple.rpartition("-")[2]
    return ["-target", f"thumb-freestanding-{abi}", f"-mcpu={target.cpu.replace('-', '_')}"]


def _header(program: Straight, layout: Layout, target: Target, stack: str) -> str:
    ports = [*_ports("INPUT", program.inputs), *_ports("OUTPUT", program.outputs)]
    strip = "-dead_strip" if target.libc == "apple" else "--gc-sections"
    return f"""\
/* A model for {target.tag}: link with libmodel.a, with {strip}. One model may be in an image, and one session. */
#ifndef FORGE_MODEL_H
#define FORGE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{
    FORGE_MODEL_ALIGNMENT = {ALIGNMENT}, /* of the memory, and of inputs */
    FORGE_MODEL_MEMORY = {layout.end}, /* bytes of a session */
{stack}    FORGE_MODEL_INPUTS = {len(program.inputs)},
    FORGE_MODEL_OUTPUTS = {len(program.outputs)}
}};

{chr(10).join(ports)}

enum {{
    FORGE_MODEL_OK = 0,
    FORGE_MODEL_BAD_MEMORY = 1, /* too small, or not aligned */
    FORGE_MODEL_BAD_INPUT = 6, /* not aligned */
    FORGE_MODEL_BAD_KERNEL = 7 /* a kernel refused its arguments */
}};

/* Make a session in `size` bytes of the caller's memory, once. What lies there belongs to it from then on. */
int forge_model_start(void *memory, size_t size);

/* Run it: arrays in the order of the ports above, rows without gaps. One call at a time. */
int forge_model_run(void *memory, const void *const *inputs, void *const *outputs);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _stack(library: Library) -> str:
    """Give the constant with the stack that calls take; none where an operating system has enough of it."""
    kernels = int(library.metadata["compile"]["stack"])
    return (
        f"    FORGE_MODEL_STACK = {kernels + RUNTIME_STACK}, /* bytes that the functions below take at most */\n"
        if kernels
        else ""
    )


def _ports(kind: str, ports: Sequence[Port]) -> Iterator[str]:
    """Give the constants of each port: its name, type, shape, elements and bytes."""
    for number, port in enumerate(ports):
        name = re.sub(r'["\\\\\x00-\x1f\x7f]|[^\x00-\x7f]', "?", port.name)
        shape = ", ".join(map(str, port.shape))
        prefix = f"#define FORGE_MODEL_{kind}_{number}"
        yield f'{prefix}_NAME "{name}"'
        yield f"{prefix}_TYPE {C_TYPES.get(port.dtype, port.dtype + '_t')}"
        yield f"{prefix}_RANK {len(port.shape)}"
        yield f"{prefix}_SHAPE {{{shape}}}"
        yield f"{prefix}_ELEMENTS {port.size // port.width}"
        yield f"{prefix}_BYTES {port.size}"
