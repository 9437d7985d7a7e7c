"""A model for a linker of macOS: Mach-O objects, linked into a program here and looked at. It is not run: no Mac is
here.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.link import link_program, undefined, zig
from forge_pipeline.errors import CompileError
from forge_pipeline.packaging.objects import package_objects
from forge_pipeline.target import Target
from tests.support.native import TILED, convolutions

ARM64, EXECUTE = 0x0100000C, 2
SYMBOLS, DYLIB, SIGNATURE, BUILD, MAIN = 0x2, 0xC, 0x1D, 0x32, 0x80000028
"""Load commands of <mach-o/loader.h>."""
MACOS = 1
CALLER = """\
#include "model.h"
static _Alignas(FORGE_MODEL_ALIGNMENT) char memory[FORGE_MODEL_MEMORY];
static _Alignas(FORGE_MODEL_ALIGNMENT) FORGE_MODEL_INPUT_0_TYPE input[FORGE_MODEL_INPUT_0_ELEMENTS];
static FORGE_MODEL_OUTPUT_0_TYPE output[FORGE_MODEL_OUTPUT_0_ELEMENTS];
int main(void) {
    const void *inputs[] = {input};
    void *outputs[] = {output};
    return forge_model_start(memory, sizeof memory) || forge_model_run(memory, inputs, outputs);
}
"""


def commands(program: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the load commands of a Mach-O file of 64 bits for Apple silicon."""
    magic, cpu, _, kind, count, _, _, _ = struct.unpack_from("<8I", program)
    assert (magic, cpu, kind) == (0xFEEDFACF, ARM64, EXECUTE)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", program, at)
        yield command, program[at : at + size]
        at += size


def symbols(program: bytes, command: bytes) -> dict[str, int]:
    """Return the symbols that a program has, by name, with the section that each is in; 0 for one of a library."""
    table, count, strings, _ = struct.unpack_from("<4I", command, 8)
    rows = [struct.unpack_from("<IBBHQ", program, table + 16 * row) for row in range(count)]
    return {program[strings + row[0] :].split(b"\0", 1)[0].decode(): row[2] for row in rows}


@pytest.mark.long
def test_it_links_to_a_signed_program_of_apple_silicon(tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs ziglang")
    target = Target.from_tag("apple/m1")
    model = convolutions()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    made = package_objects(build(model, target, replace(TILED, relocatable=True)), target)
    (tmp_path / "libmodel.a").write_bytes(made.archive)
    (tmp_path / "model.h").write_bytes(made.header)
    assert b"-dead_strip" in made.header
    (tmp_path / "main.c").write_text(CALLER)
    link_program([tmp_path / "main.c", tmp_path / "libmodel.a"], target, tmp_path / "program")

    program = (tmp_path / "program").read_bytes()
    found = dict(commands(program))
    assert {SYMBOLS, SIGNATURE, BUILD, MAIN} <= found.keys()
    assert struct.unpack_from("<2I", found[BUILD], 8) == (MACOS, 11 << 16)
    libraries = [text[24:].rstrip(b"\0") for command, text in commands(program) if command == DYLIB]
    assert libraries == [b"/usr/lib/libSystem.B.dylib"]
    names = symbols(program, found[SYMBOLS])
    own = {name for name, section in names.items() if section}
    assert {"_main", "_forge_model_start", "_forge_model_run", "_forge_linked_model"} <= own
    assert any("conv2d" in name for name in own)
    # What the system gives is named, and nothing beside: an archive that lacks something does not link.
    (tmp_path / "missing.c").write_text("int nowhere(void *); int forge_model_run(void *m) { return nowhere(m); }")
    caches = {name: str(tmp_path / "cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    zig(["cc", "-target", "aarch64-macos", "-c", "missing.c", "-o", "missing.o"], target.tag, caches, tmp_path)
    with pytest.raises(CompileError, match="undefined symbol: _nowhere"):
        undefined(tmp_path / "missing.o", target, entry="forge_model_run")
