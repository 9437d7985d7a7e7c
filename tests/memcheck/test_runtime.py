"""The runtime itself under valgrind: what it opens, decrypts and runs touches no byte that is not its own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.delivery import PASSWORD, deliver
from tests.support.native import HERE, built, convolutions, library_of, open_sizes, sequences

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind, which is Debian's package of that name"),
    pytest.mark.skipif(HERE != "x86_64", reason="the models are compiled for what memcheck has of x86-64"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the ziglang wheel is not installed"),
]

FOUND = 99
TARGET = "x86-64/v3"
RANDOM = np.random.default_rng(5)
INPUTS = {
    "convolutions": (convolutions, [RANDOM.standard_normal((2, 3, 24, 24)).astype(np.float32)]),
    "open_sizes": (open_sizes, [RANDOM.standard_normal((2, 3, 48)).astype(np.float32) for _ in range(2)]),
    "sequences": (sequences, [np.eye(5, 4, dtype=np.float32), np.array([2, 3]), np.array(3), np.array(False)]),
}


def checked(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = ["valgrind", "--quiet", f"--error-exitcode={FOUND}", "--track-origins=yes", program, *words]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)


def written(model: Callable[[], onnx.ModelProto], inputs: Sequence[np.ndarray], folder: Path) -> list[Path]:
    """Write the library and its inputs; return where they are."""
    paths = [folder / "model_library.so", *(folder / f"{index}.npy" for index in range(len(inputs)))]
    paths[0].write_bytes(library_of(model(), TARGET).to_bytes())
    for path, array in zip(paths[1:], inputs, strict=True):
        np.save(path, array)
    return paths


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_is_clean(tmp_path: Path, name: str, threads: int) -> None:
    paths = written(*INPUTS[name], tmp_path)
    done = checked(built(HERE) / "forge-run", *paths, "--threads", threads, "--runs", 3)
    assert done.returncode == 0, done.stderr


def test_opening_what_is_encrypted_is_clean(tmp_path: Path) -> None:
    library, *inputs = written(*INPUTS["convolutions"], tmp_path)
    delivery = deliver(library.read_bytes(), 3)
    library.write_bytes(delivery.model)
    (tmp_path / "key").write_bytes(delivery.key)
    (tmp_path / "password").write_bytes(PASSWORD.reveal())
    secret = ["--key", tmp_path / "key", "--password-file", tmp_path / "password"]
    done = checked(built(HERE) / "forge-run", library, *inputs, *secret)
    assert done.returncode == 0, done.stderr


def test_valgrind_would_see_it(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    source = tmp_path / "wrong.c"
    source.write_text(
        "#include <stdlib.h>\nint main(int n, char **v) { char *p = malloc(8); return p[n] > v[0][0]; }\n"
    )
    subprocess.run(["cc", "-O0", source, "-o", tmp_path / "wrong"], check=True)
    assert checked(tmp_path / "wrong").returncode == FOUND
