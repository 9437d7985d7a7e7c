"""Encrypted artifacts in the engine: what opens, what is refused and in which words, and what is left on disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.crypto.envelope import Sealed
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.errors import ArtifactError, SecretError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.stages import encrypt
from forge_runtime.engine import Engine
from forge_runtime.secret import Secret
from tests.support.paths import ROOT

PASSWORD = "correct horse"
CONFIG = encrypt.Config(
    method="password", key_ref="test", chunk_kib=64, kdf=Kdf(memory_kib=19 << 10, passes=1, lanes=1)
)
ONES = np.ones((1, 8), np.float32)
EXPECTED = ONES @ np.arange(32, dtype=np.float32).reshape(8, 4)


def seal(library: Library) -> Sealed:
    sealed: Sealed = encrypt.run(CONFIG, library, Secret(PASSWORD.encode()), os.urandom).output
    return sealed


@pytest.fixture(scope="module")
def sealed(bound_library: Library) -> Sealed:
    return seal(bound_library)


@pytest.fixture
def delivered(sealed: Sealed, tmp_path: Path) -> Path:
    folder = tmp_path / "delivered"
    folder.mkdir()
    assert sealed.key is not None
    (folder / "model_library.so").write_bytes(sealed.model)
    (folder / "modelKey.bin").write_bytes(sealed.key)
    return folder


@pytest.mark.parametrize(
    ("kib", "passes", "lanes"),
    [(19456, 1, 1), (19459, 2, 3), (19463, 3, 4), (20011, 1, 16), (19500, 4, 7)],
)
def test_a_key_of_any_costs_is_derived_as_elsewhere(bound_library: Library, kib: int, passes: int, lanes: int) -> None:
    """OpenSSL seals and the runtime opens; memory that lanes and slices do not divide is rounded down."""
    config = replace(CONFIG, kdf=Kdf(memory_kib=kib, passes=passes, lanes=lanes))
    password = "p" * kib  # longer than a block of BLAKE2b, or than several
    sealed = encrypt.run(config, bound_library, Secret(password.encode()), os.urandom).output
    np.testing.assert_array_equal(Engine(sealed.model, sealed.key, password)(ONES)[0], EXPECTED)


@pytest.mark.parametrize(
    "password", [PASSWORD, PASSWORD.encode(), Secret(PASSWORD.encode())], ids=["str", "bytes", "Secret"]
)
def test_an_encrypted_model_runs_from_files(delivered: Path, password: Secret | bytes | str) -> None:
    engine = Engine(delivered / "model_library.so", delivered / "modelKey.bin", password)
    np.testing.assert_array_equal(engine(ONES)[0], EXPECTED)


def test_an_encrypted_model_runs_from_bytes_and_shows_its_own_metadata(sealed: Sealed, bound_library: Library) -> None:
    engine = Engine(sealed.model, sealed.key, PASSWORD)
    np.testing.assert_array_equal(engine(ONES)[0], EXPECTED)
    assert engine.metadata == bound_library.metadata


def test_without_a_key_the_user_is_told_so(sealed: Sealed) -> None:
    with pytest.raises(SecretError) as refusal:
        Engine(sealed.model)
    assert str(refusal.value) == (
        "model library: expected its key file and password, found Model looks encrypted but no key provided"
        "\nfix: give both: Engine(library, key=PATH_OF_modelKey.bin, password=PASSWORD)"
    )


def test_without_a_password_the_user_is_told_so(sealed: Sealed) -> None:
    with pytest.raises(SecretError, match="found Model looks encrypted but no password provided"):
        Engine(sealed.model, sealed.key)


def test_a_wrong_password_is_refused_in_the_known_words(delivered: Path) -> None:
    with pytest.raises(SecretError) as refusal:
        Engine(delivered / "model_library.so", delivered / "modelKey.bin", "wrong horse")
    assert str(refusal.value) == (
        f"{delivered / 'modelKey.bin'}: expected the password that this key was made with, found Corrupted chunk "
        "encountered while decrypting the key, wrong password or corrupted key file"
        "\nfix: check the password; if it is right, copy modelKey.bin again from where the model was encrypted"
    )
    assert "horse" not in str(refusal.value)


def test_an_empty_password_is_refused(sealed: Sealed) -> None:
    with pytest.raises(SecretError, match="found an empty one"):
        Engine(sealed.model, sealed.key, "")


def test_a_plain_library_is_not_taken_for_an_encrypted_one(sealed: Sealed, bound_library: Library) -> None:
    with pytest.raises(ArtifactError, match="found a file that is not encrypted"):
        Engine(bound_library.to_bytes(), sealed.key, PASSWORD)


@pytest.mark.parametrize(
    "content", [b"", b"text, and no model at all" * 10, random.Random(1).randbytes(5000), b"\x7fELF" + bytes(9000)],
    ids=["empty", "text", "random", "plain .so"],
)  # fmt: skip
@pytest.mark.parametrize("with_key", [True, False])
def test_what_is_no_model_is_refused(sealed: Sealed, content: bytes, with_key: bool) -> None:
    with pytest.raises(ArtifactError):
        Engine(content, *((sealed.key, PASSWORD) if with_key else ()))


def test_a_model_for_another_machine_is_refused_after_decryption(
    pi_library: Library,
) -> None:
    sealed = seal(pi_library)
    with pytest.raises(ArtifactError, match="found one made for aarch64"):
        Engine(sealed.model, sealed.key, PASSWORD)


def test_a_foreign_library_never_gets_to_run_its_constructor(
    foreign_library: Callable[[Path], bytes], sealed: Sealed, tmp_path: Path
) -> None:
    created = tmp_path / "created"
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(foreign_library(created))
    with pytest.raises(ArtifactError):
        Engine(foreign)
    with pytest.raises(ArtifactError):
        Engine(foreign, sealed.key, PASSWORD)
    assert not created.exists()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(foreign)!r})"], check=True)
    assert created.exists(), "the constructor would have shown itself"


def test_an_altered_payload_is_refused(sealed: Sealed) -> None:
    damaged = bytearray(sealed.model)
    damaged[-20] ^= 1
    with pytest.raises(ArtifactError, match="bytes were altered"):
        Engine(bytes(damaged), sealed.key, PASSWORD)


OBSERVED = """
import json, os, sys, tempfile
from pathlib import Path
from forge_runtime import Engine
import numpy  # what importing it does is not what is observed
from forge_runtime.library import libforge
libforge()
writes = []
def watch(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        writes.append(str(arguments[0]))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
        writes.append(event)
sys.addaudithook(watch)
affinity = os.sched_getaffinity(0)
folder = Path(sys.argv[1])
engine = Engine(folder / "model_library.so", folder / "modelKey.bin", "correct horse")
(product, _) = engine(numpy.ones((1, 8), numpy.float32))
del engine
with os.scandir("/proc/self/fd") as entries:
    descriptors = [os.readlink(entry.path) for entry in entries]
print(json.dumps({
    "writes": writes,
    "product": product.tolist(),
    "descriptors": descriptors,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "affine": affinity == os.sched_getaffinity(0),
}))
"""


def observe(delivered: Path, temporary: Path) -> dict[str, object]:
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", OBSERVED, str(delivered)],
        cwd=temporary,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    seen: dict[str, object] = json.loads(done.stdout)
    assert seen["product"] == EXPECTED.tolist()
    return seen


@pytest.fixture(scope="module")
def seen(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("observed")
    assert sealed.key is not None
    (folder / "model_library.so").write_bytes(sealed.model)
    (folder / "modelKey.bin").write_bytes(sealed.key)
    temporary = folder / "temporary"
    result = observe(folder, temporary)
    assert list(temporary.iterdir()) == []
    return result


def test_loading_an_encrypted_model_opens_no_file_for_writing(seen: dict[str, object]) -> None:
    assert seen["writes"] == []


def test_an_engine_that_is_gone_leaves_no_descriptor_behind(seen: dict[str, object]) -> None:
    assert not [name for name in seen["descriptors"] if "memfd" in name]  # type: ignore[attr-defined]


def test_running_a_model_imports_numpy_alone(seen: dict[str, object]) -> None:
    known = {*sys.stdlib_module_names, "numpy", "forge_runtime", "forge_runtime_build", "__main__"}
    assert not [name for name in seen["modules"] if name not in known and not name.startswith("_")]  # type: ignore[attr-defined]


def test_running_a_model_leaves_the_process_on_all_its_cores(seen: dict[str, object]) -> None:
    assert seen["affine"] is True
