"""What a file may cost before it is known to be authentic, and what is refused without a word of the password."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.errors import ArtifactError, ConfigError, ForgeError, SecretError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.stages import encrypt
from forge_runtime.engine import Engine
from forge_runtime.secret import Secret

CONFIG = encrypt.Config(
    method="password", key_ref="test", chunk_kib=64, kdf=Kdf(memory_kib=19 << 10, passes=1, lanes=1)
)
PASSWORD = "correct horse"
TERABYTE = 1 << 40
REFUSED_IN_LITTLE_MEMORY = """
import json, resource, sys
from forge_runtime import Engine, ForgeError
import numpy
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + (512 << 20), -1))
try:
    Engine(*json.loads(sys.argv[1]), **json.loads(sys.argv[2]))
except ForgeError as error:
    print(error)
(most,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
assert most < 400 << 10
"""


@pytest.fixture(scope="module")
def sealed(bound_library: Library) -> tuple[bytes, bytes]:
    made = encrypt.run(CONFIG, bound_library, Secret(PASSWORD.encode()), os.urandom).output
    return bytes(made.model), made.key


def refusal(*arguments: object, **limits: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_IN_LITTLE_MEMORY, json.dumps(list(map(str, arguments))), json.dumps(limits)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def greedy(key: bytes) -> bytes:
    """Return the key file with a derivation that takes 1 GiB, the most that the format allows."""
    return key[:12] + (1 << 20).to_bytes(4, "big") + key[16:]


@pytest.mark.parametrize("head", ["encrypted", "plain", "zeros"])
@pytest.mark.parametrize("limits", [{}, {"max_bytes": 1 << 50}], ids=["what is free", "any"])
def test_a_sparse_file_of_a_terabyte_is_refused_without_memory_for_it(
    sealed: tuple[bytes, bytes], bound_library: Library, tmp_path: Path, head: str, limits: dict[str, int]
) -> None:
    path, key = tmp_path / "model_library.so", tmp_path / "modelKey.bin"
    key.write_bytes(sealed[1])
    with path.open("wb") as stream:
        stream.truncate(TERABYTE)
        if head == "encrypted":
            stream.write(sealed[0])
        elif head == "plain":
            end = bytearray(bound_library.to_bytes()[-96:])
            end[24:32] = (TERABYTE - 4096).to_bytes(8, "big")
            stream.seek(TERABYTE - 96)
            stream.write(end)
    arguments = (path, key, PASSWORD) if head == "encrypted" else (path,)
    assert refusal(*arguments, **limits).startswith((f"{path}: expected", "memory: expected"))


def test_a_file_larger_than_the_device_allows_is_refused(bound_library: Library) -> None:
    data = bound_library.to_bytes()
    ones = np.ones((1, 8), np.float32)
    assert Engine(data, max_bytes=len(data))(ones)[0].shape == (1, 4)
    with pytest.raises(ArtifactError, match=f"expected at most {len(data) - 1} bytes, what this device gives for it"):
        Engine(data, max_bytes=len(data) - 1)


def test_a_key_file_that_asks_for_more_than_the_device_allows_is_refused_before_anything_is_derived(
    sealed: tuple[bytes, bytes],
) -> None:
    with pytest.raises(ArtifactError, match="within 102400 KiB, what this device gives for it, found one that takes"):
        Engine(sealed[0], greedy(sealed[1]), PASSWORD, max_kdf_bytes=100 << 20)
    assert Engine(*sealed, PASSWORD, max_kdf_bytes=19 << 20).inputs[0].name == "x"


def test_a_derivation_that_the_system_has_no_memory_for_is_refused(sealed: tuple[bytes, bytes], tmp_path: Path) -> None:
    path, key = tmp_path / "model_library.so", tmp_path / "modelKey.bin"
    path.write_bytes(sealed[0])
    key.write_bytes(greedy(sealed[1]))
    assert "one that takes 1048576 KiB" in refusal(path, key, PASSWORD, max_kdf_bytes=1 << 40)


@pytest.mark.parametrize("name", ["max_bytes", "max_kdf_bytes"])
@pytest.mark.parametrize("value", [-1, 0.5, "1G", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(bound_library: Library, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: expected a number of bytes"):
        Engine(bound_library.to_bytes(), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "zero byte", "number"])
@pytest.mark.parametrize("place", ["library", "key"])
def test_what_is_no_file_is_refused_at_once(sealed: tuple[bytes, bytes], tmp_path: Path, kind: str, place: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    odd = {
        "fifo": tmp_path / "fifo",
        "device": "/dev/zero",
        "folder": tmp_path,
        "zero byte": "a\0b",
        "number": 5,
    }[kind]
    with pytest.raises(ForgeError):
        Engine(odd if place == "library" else sealed[0], odd if place == "key" else sealed[1], PASSWORD)  # type: ignore[arg-type]


def test_a_password_of_another_type_is_refused_without_showing_it(sealed: tuple[bytes, bytes]) -> None:
    with pytest.raises(SecretError, match="expected text or bytes, found int") as refused:
        Engine(*sealed, 271828)  # type: ignore[arg-type]
    assert "271828" not in shown(refused.value)


def test_a_password_that_utf8_cannot_express_is_refused_without_showing_it(sealed: tuple[bytes, bytes]) -> None:
    with pytest.raises(SecretError, match="found text with a lone surrogate") as refused:
        Engine(*sealed, "hunter" + "2\ud800")
    assert "hunter2" not in shown(refused.value)
    error: BaseException | None = refused.value
    while error is not None:
        assert not isinstance(error, UnicodeError)
        error = error.__cause__ or error.__context__


def shown(error: BaseException) -> str:
    """Return all that a traceback with locals shows of this package's frames, and the messages."""
    trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = [frame for frame in trace.stack if Path(frame.filename) != Path(__file__)]
    assert frames
    return "".join([*trace.format_exception_only(), *(repr(frame.locals) for frame in frames)])


def test_the_default_limits_are_what_is_free() -> None:
    from forge_runtime.limits import Limits, available

    assert resource.getpagesize() < available() < 1 << 50
    assert Limits.of(7, 8) == Limits(library=7, derivation=8)
