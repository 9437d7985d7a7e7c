"""Small libraries, compiled for the machine that runs the tests."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4)
BUILT = {"uuid": "6f0c4f6e-0000-4000-8000-000000000000", "stage_key": "5" * 64, "fingerprint": "f" * 64, "tools": {}}
"""What the stage adds."""
TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


def zig(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True, capture_output=True)


def compiled(text: str, tag: str = "host", options: Options = TILED, **weights: np.ndarray) -> Library:
    """Return the graph of ONNX's text form, compiled."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    library = build(model, Target.from_tag(tag), options)
    return replace(library, metadata={**library.metadata, **BUILT})


PRODUCT = """g (float[n, 8] x{}) => (float[n, 4] product, float[n, 4] relu) {{
    product = MatMul(x, w)
    relu = Relu(product)
}}"""
SUM = """g (float[m, 3] {0}, float[m, 3] {1}) => (float[m, 3] sum) {{
    inner = Add({0}, {1})
    sum = Add(inner, c)
}}"""


@pytest.fixture(scope="session")
def rank_zero_library() -> Library:
    """x[] -> x + x"""
    return compiled("g (float x) => (float y) { y = Add(x, x) }")


@pytest.fixture(scope="session")
def constant_library() -> Library:
    """() -> 1, 2, 3"""
    return compiled("g () => (float[3] y) { y = Add(a, b) }", a=np.arange(3, dtype="f"), b=np.ones(1, "f"))


@pytest.fixture(scope="session")
def bytes_library() -> Library:
    """x[m]: int4 -> x"""
    return compiled("g (int4[m] x) => (int4[m] y) { y = Identity(x) }")


@pytest.fixture(scope="session")
def halves_library() -> Library:
    """x[3]: bfloat16 -> x + x"""
    return compiled("g (bfloat16[3] x) => (bfloat16[3] y) { y = Add(x, x) }")


@pytest.fixture(scope="session")
def bound_library() -> Library:
    """A model with its weight in the library: x[n, 8] -> product[n, 4], relu[n, 4]"""
    return compiled(PRODUCT.format(""), w=WEIGHT)


@pytest.fixture(scope="session")
def listed_library() -> Library:
    """The same for four rows alone."""
    return compiled(PRODUCT.format(""), options=replace(TILED, dims={"n": (4,)}, open_form=False), w=WEIGHT)


@pytest.fixture(scope="session")
def free_library() -> Library:
    """The same with the weight as a second input of the model."""
    return compiled(PRODUCT.format(", float[8, 4] w"))


@pytest.fixture(scope="session")
def sum_libraries() -> list[Library]:
    """Two models that differ in a constant: a[m, 3], b[m, 3] -> a + b + 1, and + 2"""
    return [compiled(SUM.format("a", "b"), c=np.full(3, constant, "f")) for constant in (1, 2)]


@pytest.fixture(scope="session")
def sides_library() -> Library:
    """left[m, 3], right[m, 3] -> left + right + 1"""
    return compiled(SUM.format("left", "right"), c=np.ones(3, "f"))


@pytest.fixture(scope="session")
def pi_library() -> Library:
    """What is compiled for another machine."""
    return compiled("g (float x) => (float y) { y = Add(x, x) }", "raspberry-pi/5")


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
