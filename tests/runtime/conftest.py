"""Small libraries, compiled by TVM and linked by the LLD of the ziglang wheel, for whatever machine runs the tests."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.host import Host

WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4)


def zig(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True, capture_output=True)


def elf_of(module: Any, folder: Path) -> bytes:
    import tvm

    path = folder / "linked.so"

    def link(_name: str, objects: list[str], **_ignored: Any) -> None:
        zig("ld.lld", "-shared", "--warn-unresolved-symbols", "-o", path, *objects)

    executable = tvm.relax.build(module, tvm.target.Target({"kind": "llvm"}))
    executable.export_library("linked.so", fcompile=link, workspace_dir=str(folder))
    return path.read_bytes()


def describe(inputs: list[tuple[Any, ...]], outputs: list[tuple[Any, ...]], **more: Any) -> dict[str, Any]:
    def listed(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in rows]

    arch = Host.this().arch
    return {
        "format": 2,
        "uuid": "6f0c4f6e-0000-4000-8000-000000000000",
        "stage_key": "5" * 64,
        "fingerprint": "f" * 64,
        "tools": {},
        "target": {
            "tag": "test",
            "kind": "llvm",
            "triple": f"{arch}-linux-gnu",
            "cpu": "generic",
            "features": [],
            "cpu_flags": [],
        },
        "inputs": listed(inputs),
        "outputs": listed(outputs),
        **more,
    }


def build_product(folder: Path) -> bytes:
    """main(x[n, 8], w[8, 4]) -> x @ w, relu(x @ w)"""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 4), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            result = builder.emit_output(relax.Tuple([product, builder.emit(relax.op.nn.relu(product))]))
        builder.emit_func_output(result)
    return elf_of(builder.get(), folder)


def build_sum(folder: Path, constant: float) -> bytes:
    """main(a[m, 3], b[m, 3]) -> a + b + constant, with the constant inside the code"""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("m", "int64")
    a = relax.Var("a", relax.TensorType((rows, 3), "float32"))
    b = relax.Var("b", relax.TensorType((rows, 3), "float32"))
    with builder.function("main", [a, b]):
        with builder.dataflow():
            inner = builder.emit(relax.op.add(a, b))
            fixed = relax.const(np.full((3,), constant, np.float32))
            result = builder.emit_output(relax.op.add(inner, fixed))
        builder.emit_func_output(result)
    return elf_of(builder.get(), folder)


@pytest.fixture(scope="session")
def rank_zero_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """main(x[]) -> x + x"""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            doubled = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(doubled)
    metadata = describe([("x", "float32", [])], [("y", "float32", [])])
    return Library(elf=elf_of(builder.get(), tmp_path_factory.mktemp("rank_zero")), metadata=metadata)


@pytest.fixture(scope="session")
def constant_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """main() -> 1, 2, 3"""
    from tvm import relax

    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            numbers = builder.emit_output(relax.op.add(relax.const(np.arange(3.0, dtype="float32")), relax.const(1.0)))
        builder.emit_func_output(numbers)
    metadata = describe([], [("y", "float32", [3])])
    return Library(elf=elf_of(builder.get(), tmp_path_factory.mktemp("constant")), metadata=metadata)


@pytest.fixture(scope="session")
def bytes_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """main(x[m]: int4) -> x, as bytes"""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("m", "int64"),), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit_output(relax.op.maximum(x, x))
        builder.emit_func_output(moved)
    metadata = describe([("x", "int4", ["m"])], [("y", "int4", ["m"])])
    return Library(elf=elf_of(builder.get(), tmp_path_factory.mktemp("bytes")), metadata=metadata)


@pytest.fixture(scope="session")
def product_elf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_product(tmp_path_factory.mktemp("product"))


@pytest.fixture(scope="session")
def bound_library(product_elf: bytes) -> Library:
    """A model whose weight is in the weights section: x[n, 8] -> product[n, 4], relu[n, 4]"""
    metadata = describe(
        [("x", "float32", ["n", 8])],
        [("product", "float32", ["n", 4]), ("relu", "float32", ["n", 4])],
        weights=[{"dtype": "float32", "shape": [8, 4], "offset": 64}],
    )
    return Library(elf=product_elf, metadata=metadata, weights=bytes(64) + WEIGHT.tobytes())


@pytest.fixture(scope="session")
def free_library(product_elf: bytes) -> Library:
    """The same code with the weight as a second input of the model."""
    metadata = describe(
        [("x", "float32", ["n", 8]), ("w", "float32", [8, 4])],
        [("product", "float32", ["n", 4]), ("relu", "float32", ["n", 4])],
    )
    return Library(elf=product_elf, metadata=metadata)


@pytest.fixture(scope="session")
def sum_libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Library]:
    """Two models that differ in a constant inside the code: a[m, 3], b[m, 3] -> a + b + 1, and + 2"""
    rows = [("a", "float32", ["m", 3]), ("b", "float32", ["m", 3])]
    metadata = describe(rows, [("sum", "float32", ["m", 3])])
    return [
        Library(elf=build_sum(tmp_path_factory.mktemp("sum"), constant), metadata=metadata) for constant in (1.0, 2.0)
    ]


@pytest.fixture(scope="session")
def foreign_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], bytes]:
    """Return what builds a shared object that creates a file, named by its argument, as soon as it is loaded."""
    folder = tmp_path_factory.mktemp("foreign")

    def build(created: Path) -> bytes:
        source = folder / "foreign.c"
        source.write_text(
            "int creat(const char *path, unsigned mode);\n"
            f'__attribute__((constructor)) static void run(void) {{ creat("{created}", 0600); }}\n'
        )
        triple = f"{platform.machine()}-linux-gnu"
        zig("cc", "-c", "-fPIC", "-O1", "-target", triple, "-o", folder / "foreign.o", source)
        zig("ld.lld", "-shared", "--warn-unresolved-symbols", "-o", folder / "foreign.so", folder / "foreign.o")
        return (folder / "foreign.so").read_bytes()

    return build


@pytest.fixture
def retarget() -> Callable[..., Library]:
    """Return what copies a library with other words about its target."""

    def change(library: Library, **words: Any) -> Library:
        return replace(library, metadata={**library.metadata, "target": {**library.metadata["target"], **words}})

    return change
