"""Under limits that are too low the limit is named, and nobody's model is called damaged; exit code 1, nothing left."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from forge_pipeline import limits
from tests.support.classifier import classifier
from tests.support.paths import ROOT


def _laborious() -> onnx.ModelProto:
    """Return products of many sizes, each a kernel of its own: seconds of compiling, whatever the CPU."""
    sizes = range(16, 316)
    weights = {f"w{size}": np.full((size, size + 1), 1 / size, np.float32) for size in sizes}
    products = [helper.make_node("MatMul", [f"x{size}", f"w{size}"], [f"y{size}"]) for size in sizes]
    between = [
        helper.make_node("Relu", [f"y{size}"], [f"x{size + 1}"]) for size in sizes
    ]  # none is made one with the next
    nodes = [node for pair in zip(products, between, strict=True) for node in pair]
    ends = [helper.make_tensor_value_info(f"x{size}", onnx.TensorProto.FLOAT, [4, size]) for size in (16, 316)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "laborious", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _build(folder: Path, limit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "tmp").mkdir()
    onnx.save(_laborious() if limit.startswith("-S -t") else classifier(), folder / "model.onnx")
    forge = [sys.executable, "-m", "forge_pipeline", "run", "model.path=model.onnx", "quantize=none"]
    return subprocess.run(
        ["bash", "-c", f'ulimit {limit} && exec "$@"', "bash", *forge, "out=out", "store.path=store", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def _check(done: subprocess.CompletedProcess[str], folder: Path, named: str) -> None:
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert named in line
    assert "Traceback" not in done.stderr
    assert "hostile" not in done.stderr
    assert not (folder / "out").exists()
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ("-v 180000", "`ulimit -v` 180000"),
        ("-n 12", "`ulimit -n` 12"),
        ("-S -t 5", "`ulimit -t` 5"),  # seconds: the build itself takes two, the compiler twenty
        pytest.param("-v 300000", "`ulimit -v` 300000", marks=pytest.mark.long),
        pytest.param("-v 400000", "`ulimit -v` 400000", marks=pytest.mark.long),
        pytest.param("-d 100000", "`ulimit -d` 100000", marks=pytest.mark.long),
        pytest.param("-n 6", "`ulimit -n` 6", marks=pytest.mark.long),
        pytest.param("-n 8", "`ulimit -n` 8", marks=pytest.mark.long),
        pytest.param("-n 10", "`ulimit -n` 10", marks=pytest.mark.long),
    ],
)
def test_a_limit_that_is_too_low_is_named(tmp_path: Path, limit: str, named: str) -> None:
    _check(_build(tmp_path, limit), tmp_path, named)


@pytest.mark.long
@pytest.mark.parametrize("limit", ["-v 1600000", pytest.param("-t 25", marks=pytest.mark.long)])
def test_a_build_that_fits_under_a_hard_limit_below_ours_succeeds(tmp_path: Path, limit: str) -> None:
    done = _build(tmp_path, limit)
    assert done.returncode == 0, done.stderr


def test_an_importer_under_a_hard_limit_names_it(tmp_path: Path) -> None:
    program = """
import json, resource
from pathlib import Path
from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends.import_process import import_apart
from forge_pipeline.frontends.contract import Limits
resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))
try:
    import_apart("stranger", Path("model"), (), Limits(memory=4 << 30, seconds=60))
except ForgeError as error:
    print(json.dumps([type(error).__name__, *error.args]))
"""
    (tmp_path / "stranger.py").write_text("def convert(path, inputs):\n    return bytearray(1 << 30)\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    kind, *parts = json.loads(done.stdout)
    assert (kind, "`ulimit -d` 307200" in parts[2], "hostile" in str(parts)) == ("LimitError", True, False)


def test_a_limit_is_lowered_and_never_raised() -> None:
    program = f"""
import resource
from forge_pipeline.limits import lower
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, 1 << 34))
lower(resource.RLIMIT_CPU, 30, 1)
lower(resource.RLIMIT_DATA, 1 << 40)
lower(resource.RLIMIT_FSIZE, 1 << 30)
print([resource.getrlimit(kind) for kind in {[resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE]}])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == str([(19, 20), (1 << 33, 1 << 34), (1 << 30, 1 << 30)])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory ran out"),
        (OSError(24, "Too many open files"), "[Errno 24] Too many open files"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("x.so: failed to map segment"), "x.so: failed to map segment"),
        (ValueError("a bug"), None),
    ],
)  # fmt: skip
def test_what_libraries_say_when_they_are_refused_memory_is_understood(error: Exception, said: str | None) -> None:
    wrapped = RuntimeError("something else failed")
    wrapped.__cause__ = error
    assert limits.exhaustion(error) == limits.exhaustion(wrapped) == said
