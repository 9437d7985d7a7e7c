"""How the runtime was linked, read from its ELF files, and what of a password and of keys stays in a process."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from forge_pipeline.content import in_memory
from forge_pipeline.crypto import keyfile
from forge_pipeline.runtime.bundle import Library
from tests.support.delivery import CHEAP, PASSWORD, Delivery, deliver
from tests.support.native import HERE, RUNTIME

LOAD, DYNAMIC, STACK, RELRO = 1, 2, 0x6474E551, 0x6474E552
EXECUTE, WRITE = 1, 2
FLAGS, FLAGS_1 = 30, 0x6FFFFFFB
BIND_NOW, NOW, PIE = 8, 1, 0x08000000


class Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    alignment: int


def segments(data: bytes) -> Iterator[Segment]:
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        yield Segment._make(struct.unpack_from("<IIQQQQQQ", data, start + size * index))


def tags(data: bytes) -> Mapping[int, int]:
    (row,) = (row for row in segments(data) if row.kind == DYNAMIC)
    return dict(struct.iter_unpack("<QQ", data[row.offset : row.offset + row.size]))


@pytest.mark.parametrize("name", ["forge-run", "libforge.so"])
def test_it_lies_anywhere_and_nothing_is_code_and_writable(runtime: Path, name: str) -> None:
    data = (runtime / name).read_bytes()
    rows = list(segments(data))
    assert struct.unpack_from("<H", data, 16) == (3,)  # a shared object, or a program that may lie anywhere
    assert {row.flags & (EXECUTE | WRITE) for row in rows if row.kind == LOAD} <= {0, EXECUTE, WRITE}
    assert [row.flags & EXECUTE for row in rows if row.kind == STACK] == [0]
    assert any(row.kind == RELRO for row in rows)
    found = tags(data)
    if name == "libforge.so":
        assert found[FLAGS] & BIND_NOW and found[FLAGS_1] & NOW
    else:
        assert found[FLAGS_1] & PIE


@pytest.mark.skipif(HERE != "x86_64", reason="looks for what x86-64 reads a canary with")
def test_functions_of_the_library_have_canaries(runtime: Path) -> None:
    read_canary = bytes.fromhex("64488b0425") + struct.pack("<I", 0x28)  # mov %fs:0x28, %rax
    assert (runtime / "libforge.so").read_bytes().count(read_canary) > 50


PROBE = r"""
#define _GNU_SOURCE
#include <forge.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
    static char password[64];
    forge_model *model = NULL;
    int file = open(arguments[3], O_RDONLY);
    ssize_t size = read(file, password, sizeof password);
    if (count != 4 || size < 1) return 1;
    int failed = forge_open(arguments[1], arguments[2], password, (size_t)size, &model);
    explicit_bzero(password, sizeof password); /* the caller's copy is the caller's to wipe */
    puts(failed ? "refused" : "open");
    fflush(stdout);
    getchar();
    forge_close(model);
    puts("closed");
    fflush(stdout);
    getchar();
    return 0;
}
"""


def secrets(delivery: Delivery) -> Mapping[str, bytes]:
    """Return what opening ``delivery`` derives on the way, as docs/format.md says."""
    salt, costs = delivery.key[24:40], {"iterations": CHEAP.passes, "lanes": CHEAP.lanes}
    password = PASSWORD.reveal()
    derived = Argon2id(salt=salt, length=64, memory_cost=CHEAP.memory_kib, **costs).derive(password)
    data_key = keyfile.unwrap(delivery.key, PASSWORD).reveal()
    header = delivery.model[: int.from_bytes(delivery.model[16:20], "big")]

    def expanded(info: bytes) -> bytes:
        return HKDF(SHA256(), 32, delivery.model[32:64], info).derive(data_key)

    return {
        "password": password,
        "key of the key file": derived[:32],
        "key of the key file's code": derived[32:],
        "data key": data_key,
        "key of the header": expanded(b"mlenc/v1/header"),
        "key of the contents": expanded(b"mlenc/v1/payload" + hashlib.sha256(header).digest()),
    }


def memory(process: int) -> bytes:
    """Return all that a process may read of its own memory."""
    found = []
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            start, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if rights[0] == "r" and "[v" not in line:
                file.seek(int(start, 16))
                found.append(file.read(int(end, 16) - int(start, 16)))
    return b"".join(found)


@dataclass(frozen=True, slots=True)
class Probe:
    """A program that opens a model, says whether it could, waits, closes it, and waits again."""

    path: Path

    def memories(self, delivery: Delivery, said: bytes) -> Iterator[bytes]:
        """Yield the program's memory after each of these."""
        contents = {"model": delivery.model, "key": delivery.key, "password": delivery.password.reveal()}
        for name, content in contents.items():
            (self.path.parent / name).write_bytes(content)
        command = [self.path, *(self.path.parent / name for name in contents)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == said
                yield memory(process.pid)
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"closed\n"
                yield memory(process.pid)
            finally:
                process.kill()


@pytest.fixture
def probe(runtime: Path, tmp_path: Path) -> Probe:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    (tmp_path / "probe.c").write_text(PROBE)
    words = ["cc", "-O1", "-I", RUNTIME / "include", tmp_path / "probe.c", runtime / "libforge.a", "-pthread", "-o"]
    subprocess.run([*words, tmp_path / "probe"], check=True, timeout=120)
    return Probe(tmp_path / "probe")


def test_no_key_stays_in_memory_and_no_plaintext_after_the_model_is_closed(probe: Probe, libraries: Path) -> None:
    data = (libraries / "convolutions.so").read_bytes()
    delivery = deliver(data, 5)
    opened, closed = probe.memories(delivery, b"open\n")
    weights = bytes(in_memory(Library.from_bytes(data).weights))
    assert weights[-64:] in opened  # this finds what is there
    assert weights[-64:] not in closed
    for found in (opened, closed):
        assert [name for name, secret in secrets(delivery).items() if secret in found] == []


def test_no_key_stays_in_memory_where_the_contents_were_altered(probe: Probe, libraries: Path) -> None:
    delivery = deliver((libraries / "convolutions.so").read_bytes(), 6)
    altered = replace(delivery, model=delivery.model[:-1] + bytes([delivery.model[-1] ^ 1]))
    for found in probe.memories(altered, b"refused\n"):
        assert [name for name, secret in secrets(delivery).items() if secret in found] == []
