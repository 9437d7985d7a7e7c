"""The runtime's AES-256-GCM, in each form that it is compiled to, against OpenSSL and the vectors of NIST."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.native import HERE, ROOT, built
from tests.support.once import once

FORMS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "x86_64": {
        "portable": (),
        "fast": ("avx2", "bmi2", "aes", "pclmulqdq"),
        "wide": ("avx512bw", "avx512vl", "vaes", "vpclmulqdq"),
    },
    "aarch64": {"portable": (), "fast": ("aes", "pmull", "sha2")},
    "riscv64": {"portable": ()},
}
"""Of each kind of CPU the forms, and what one must have for it; kinds that are not this one's are emulated."""
EMULATED = {"aarch64": ("-cpu", "max")}  # of riscv64 the usual one does
TAG = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is decrypted, to a place ``before`` bytes before it, and what comes of it: None where it is refused."""

    key: bytes
    nonce: bytes
    associated: bytes
    encrypted: bytes
    plain: bytes | None
    before: int = 0

    def written(self, form: int) -> bytes:
        sizes = len(self.encrypted) - TAG, len(self.associated), self.before
        return struct.pack("<4I", form, *sizes) + self.nonce + self.key + self.associated + self.encrypted


@dataclass(frozen=True, slots=True)
class Cipher:
    """A program around the forms, and which of them is asked for."""

    command: tuple[str, ...]
    form: int

    def check(self, cases: Sequence[Case]) -> None:
        given = b"".join(case.written(self.form) for case in cases)
        done = subprocess.run(self.command, input=given, capture_output=True, timeout=120, check=True)
        answer = memoryview(done.stdout)
        for case in cases:
            size = len(case.encrypted) - TAG
            found = bytes(answer[1 : 1 + size]) if answer[0] else None
            assert found == case.plain, (size, len(case.associated), case.before)
            answer = answer[1 + size :]
        assert not answer


@pytest.fixture(
    params=[
        pytest.param((arch, form), id=f"{arch}-{form}", marks=[pytest.mark.long] * (arch == "riscv64"))
        for arch, forms in FORMS.items()
        for form in forms
    ]
)
def cipher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cipher:
    arch, form = request.param
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the ziglang wheel is not installed")
    emulator: tuple[str, ...] = ()
    if arch != HERE:
        found = shutil.which(f"qemu-{arch}") or shutil.which(f"qemu-{arch}-static")
        if found is None:
            pytest.skip(f"qemu-{arch} is not installed: apt-get install qemu-user")
        emulator = (found, *EMULATED.get(arch, ()))
    elif lacks := set(FORMS[arch][form]) - set(_flags()):
        pytest.skip(f"this CPU has no {', '.join(sorted(lacks))}")
    folder = once(tmp_path_factory, f"ciphers-{arch}", functools.partial(_compile, arch))
    return Cipher((*emulator, str(folder / "decrypt")), list(FORMS[arch]).index(form))


def _flags() -> Sequence[str]:
    said = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return said[1].split() if said else ()


def _compile(arch: str, folder: Path) -> None:
    names = ", ".join(f'"{form}"' for form in FORMS[arch])
    (folder / "forms.zig").write_text(f"pub const forms = [_][]const u8{{ {names} }};\n")
    source, library = ROOT / "tests" / "support" / "decrypt.zig", built(arch) / "libforge.a"
    modules = ["--dep", "forms", f"-Mroot={source}", f"-Mforms={folder / 'forms.zig'}"]
    command = [sys.executable, "-m", "ziglang", "build-exe", "-target", f"{arch}-linux-none", "-OReleaseSmall"]
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"), "ZIG_LOCAL_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [*command, *modules, str(library), f"-femit-bin={folder / 'decrypt'}"],
        env={**os.environ, **caches},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def made(choice: random.Random, size: int) -> Case:
    """Return a case of ``size`` bytes; before it there is room, or none."""
    key, nonce, plain = choice.randbytes(32), choice.randbytes(12), choice.randbytes(size)
    associated = choice.randbytes(choice.choice((0, 0, 1, 15, 16, 17, 100)))
    return Case(
        key=key,
        nonce=nonce,
        associated=associated,
        encrypted=AESGCM(key).encrypt(nonce, plain, associated),
        plain=plain,
        before=choice.choice((0, 1, 16, 48, 96, 1000)),
    )


@pytest.mark.every(8)
def test_it_agrees_with_openssl_on_every_length(cipher: Cipher) -> None:
    choice = random.Random(7)
    sizes = [*range(1100), *(choice.randrange(1 << 16) for _ in range(20)), 1 << 16, 1 << 20]
    cipher.check([made(choice, size) for size in sizes])


def test_any_bit_that_was_changed_is_found(cipher: Cipher) -> None:
    choice = random.Random(8)
    cases = []
    for size in range(0, 600, 3):
        case = made(choice, size)
        for name in ("key", "nonce", "associated", "encrypted"):
            if changed := bytearray(getattr(case, name)):
                changed[choice.randrange(len(changed))] ^= 1 << choice.randrange(8)
                fields: dict[str, Any] = {name: bytes(changed), "plain": None}
                cases.append(replace(case, **fields))
    cipher.check(cases)


def test_a_counter_that_grows_past_a_byte_and_two_stays_right(cipher: Cipher) -> None:
    cipher.check([made(random.Random(9), size) for size in (255 * 16 + 3, 257 * 16, (65536 + 40) * 16 + 5)])


def test_it_answers_as_nist_says(cipher: Cipher) -> None:
    vectors = pytest.importorskip("cryptography_vectors")
    with vectors.open_vector_file("ciphers/AES/GCM/gcmDecrypt256.rsp", "r") as file:
        cases = list(nist(file.read()))
    assert len(cases) > 300
    assert {case.plain is None for case in cases} == {True, False}
    cipher.check(cases)


def nist(text: str) -> Iterator[Case]:
    """Yield the cases of a file of NIST's CAVP that have a nonce of 96 bits and a whole tag."""
    for block in text.split("\n\n"):
        said = dict(re.findall(r"^(Key|IV|CT|AAD|Tag|PT) = ?(\w*)$", block, re.MULTILINE))
        if said.keys() >= {"Key", "IV", "CT", "AAD", "Tag"} and (len(said["IV"]), len(said["Tag"])) == (24, 32):
            found = {name: bytes.fromhex(digits) for name, digits in said.items()}
            yield Case(
                key=found["Key"],
                nonce=found["IV"],
                associated=found["AAD"],
                encrypted=found["CT"] + found["Tag"],
                plain=found.get("PT"),
            )
