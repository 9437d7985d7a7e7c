"""What a fuzzer needs for the runtime, from a model: `python runtime/fuzz/prepare.py model.onnx FOLDER`.

Writes FOLDER/harness, which AFL++'s compiler links (Debian: apt-get install afl++), FOLDER/model_library.so and
FOLDER/seeds. The kernels of that library compare their arguments, as others call them than the program that they were
made for. Then

    FORGE_FUZZ_LIBRARY=FOLDER/model_library.so afl-fuzz -i FOLDER/seeds -o FOLDER/found -t 1000 -- FOLDER/harness

Turns without end are no fault of a table: what afl-fuzz counts as timeouts is to be expected of models with loops.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import onnx

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.content import in_memory
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.stages import encrypt
from forge_pipeline.target import Target
from forge_runtime.secret import Secret

HERE = Path(__file__).resolve().parent
FOOTER, DIGEST = 96, 32
ROW = struct.Struct(">48s6Q")
OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None, argument_checks=True)
BUILD = {"uuid": str(uuid.UUID(int=0)), "stage_key": "0" * 64, "fingerprint": "0" * 64, "tools": {}}
"""What the pipeline would say of the build."""
CHEAPEST = Kdf(memory_kib=19 << 10, passes=1, lanes=1)


def link(folder: Path) -> None:
    """Compile the runtime with the language's checks and marks of its branches, and link it to AFL++'s driver."""
    found = folder / "harness.o"
    machine = ["-target", f"{os.uname().machine}-linux-gnu", "-mcpu=baseline", "-lc", "-fPIC"]
    modules = ["--dep", "core", f"-Mroot={HERE / 'harness.zig'}", f"-Mcore={HERE.parent / 'src' / 'core.zig'}"]
    marked = [
        "-O",
        "ReleaseSafe",
        "-fno-stack-check",
        "-fcompiler-rt",
        "-fsanitize-coverage-trace-pc-guard",
        *modules,
        f"-femit-bin={found}",
    ]
    subprocess.run([sys.executable, "-m", "ziglang", "build-obj", *machine, *marked], check=True)
    linked: list[str | Path] = ["-fsanitize=fuzzer", HERE / "marks.c", found, "-lm", "-o", folder / "harness"]
    subprocess.run(["afl-clang-fast", *linked], check=True, stdout=subprocess.DEVNULL)


def seeds(data: bytes) -> dict[str, bytes]:
    """Return what the harness takes for each part of a library: `Part` of harness.zig, then the part."""
    library = Library.from_bytes(data)
    config = encrypt.Config(method="password", key_ref="fuzz", chunk_kib=64, kdf=CHEAPEST)
    sealed = encrypt.run(config, library, Secret(b"password"), os.urandom).output
    # The harness's cipher leaves what it gets as it is: the plaintext, in chunks, each with a tag.
    chunks = b"".join(data[at : at + (1 << 16)] + bytes(16) for at in range(0, len(data), 1 << 16))
    model = in_memory(sealed.model)
    header = int.from_bytes(model[16:20], "big")
    parts = [
        bytes(library.program),
        data[-FOOTER:-DIGEST],
        bytes(library.elf),
        (sealed.key or b"") + model[:header] + chunks,
        b"\x02" + _variants(library),
    ]
    names = ("program", "footer", "code", "sealed", "variants")
    return {name: bytes([index]) + part for index, (name, part) in enumerate(zip(names, parts, strict=True))}


def _variants(library: Library) -> bytes:
    """Return the program's part of a library with this one as two variants, each with a program of its own."""
    program = bytes(library.program)
    start, metadata = 2 * ROW.size, len(library.metadata_bytes())
    second = start + len(program) + -len(program) % 64
    rows = [
        ROW.pack(name, 0, len(library.elf), place, len(program), 0, metadata)
        for name, place in ((b"first", start), (b"second", second))
    ]
    return b"".join([*rows, program, bytes(-len(program) % 64), program])


def main(model: str, folder: str) -> None:
    """Write all three."""
    place = Path(folder)
    (place / "seeds").mkdir(parents=True, exist_ok=True)
    made = build(onnx.load(model), Target.from_tag("host"), OPTIONS)
    library = replace(made, metadata={**made.metadata, **BUILD}).to_bytes()
    (place / "model_library.so").write_bytes(library)
    for name, seed in seeds(library).items():
        (place / "seeds" / name).write_bytes(seed)
    link(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
