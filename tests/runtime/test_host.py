from __future__ import annotations

import struct
from typing import Any

import pytest

from forge_pipeline.errors import ArtifactError
from forge_pipeline.runtime.host import Host, ask_for_tiles
from forge_pipeline.target import described

X86 = Host(arch="x86_64", system="linux", bits=64, flags=frozenset({"avx2", "fma"}))
PI = Host(arch="aarch64", system="linux", bits=64, flags=frozenset({"asimd", "asimddp"}))
MAC = Host(arch="aarch64", system="darwin", bits=64, flags=None)


def target(triple: str, *flags: str, kind: str = "llvm") -> dict[str, Any]:
    return {"tag": "some/board", "kind": kind, "triple": triple, "cpu_flags": list(flags)}


def elf(bits: int = 2, order: int = 1, kind: int = 3, machine: int = 62) -> bytes:
    return struct.pack("<4sBBB9xHH", b"\x7fELF", bits, order, 1, kind, machine) + bytes(44)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (X86, target("x86_64-linux-gnu")),
        (X86, target("x86_64-unknown-linux-gnu", "avx2", "fma")),
        (PI, target("aarch64-linux-gnu", "asimd")),
        (PI, target("aarch64-linux-android")),
        (MAC, target("arm64-apple-macosx11.0.0")),
        (MAC, target("arm64-apple-darwin", "whatever it has")),
    ],
)
def test_a_machine_takes_what_was_made_for_it(host: Host, wanted: dict[str, Any]) -> None:
    host.check_target(wanted, where="model")


@pytest.mark.parametrize(
    ("host", "wanted", "found"),
    [
        (X86, target("aarch64-linux-gnu"), "one made for aarch64 (some/board, aarch64-linux-gnu)"),
        (PI, target("x86_64-linux-gnu"), "one made for x86_64 (some/board, x86_64-linux-gnu)"),
        (PI, target("arm64-apple-macosx"), "one made for aarch64 (some/board, arm64-apple-macosx)"),
        (MAC, target("aarch64-linux-gnu"), "one made for aarch64 (some/board, aarch64-linux-gnu)"),
        (X86, target("x86_64-linux-gnu", "fma", "avx512f", "amx_int8"), "a CPU without amx_int8, avx512f"),
        (X86, target("x86_64-linux-gnu", kind="cuda"), "one made for cuda (some/board)"),
    ],
)
def test_a_machine_refuses_what_was_made_for_another(host: Host, wanted: dict[str, Any], found: str) -> None:
    with pytest.raises(ArtifactError) as refusal:
        host.check_target(wanted, where="model")
    assert (refusal.value.where, refusal.value.found) == ("model", found)


def test_every_described_machine_takes_its_own_target_and_no_other_architecture() -> None:
    for own in described():
        arch = {"arm64": "aarch64"}.get(own.arch, own.arch)
        system = "darwin" if own.libc == "apple" else "linux"
        host = Host(arch=arch, system=system, bits=64, flags=frozenset(own.cpu_flags))
        for other in described():
            wanted = target(other.triple, *other.cpu_flags)
            other_arch = {"arm64": "aarch64"}.get(other.arch, other.arch)
            fits = (
                other_arch == arch
                and (other.libc == "apple") == (own.libc == "apple")
                and set(other.cpu_flags) <= set(own.cpu_flags)
            )
            if fits:
                host.check_target(wanted, where="model")
            else:
                with pytest.raises(ArtifactError):
                    host.check_target(wanted, where="model")


def test_this_machine_is_described() -> None:
    here = Host.this()
    here.check_target(target(f"{here.arch}-{here.system}", *sorted(here.flags or ())), where="model")


@pytest.mark.skipif("amx_tile" in (Host.this().flags or ()), reason="this CPU has AMX")
def test_tiles_that_the_system_does_not_have_are_refused() -> None:
    with pytest.raises(ArtifactError) as refusal:
        ask_for_tiles(where="model")
    assert (
        "model: expected a system that lets processes use AMX's tiles, which the library was compiled for (Linux 5.16)"
        in str(refusal.value)
    )


def test_a_shared_object_of_this_machine_passes() -> None:
    X86.check_elf(elf(), where="model")
    PI.check_elf(elf(machine=183), where="model")


@pytest.mark.parametrize(
    "content",
    [
        elf(machine=183),
        elf(machine=999),
        elf(bits=1),
        elf(order=2),
        elf(kind=2),
        elf()[:15],
        b"",
        b"\xcf\xfa\xed\xfe" + bytes(60),
        b"MZ" + bytes(62),
    ],
    ids=["aarch64", "unknown", "32 bit", "big-endian", "program", "cut off", "empty", "Mach-O", "PE"],
)
def test_another_kind_of_code_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError):
        X86.check_elf(content, where="model")
