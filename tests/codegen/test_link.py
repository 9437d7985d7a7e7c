"""Linking: the same bytes anywhere, nothing from PATH, nothing unresolved on the device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from forge_pipeline.codegen.link import link
from forge_pipeline.errors import CompileError, TargetError
from forge_pipeline.target import Target

TAGS = ("x86-64/v3", "raspberry-pi/5", "android/cpu", "riscv64/generic", "apple/m1")


def object_file(path: Path, target: Target, function: str) -> Path:
    """Write an object whose one function calls ``function`` of the C library on every element of an array."""
    import tvm
    from tvm import te

    source = te.placeholder((8,), "float32", name="source")
    result = te.compute((8,), lambda i: tvm.tirx.call_pure_extern("float32", function, source[i]), name="result")
    kernel = te.create_prim_func([source, result]).with_attr("global_symbol", "kernel")
    tvm.tirx.build(tvm.IRModule({"kernel": kernel}), target=target.tvm()).write_to_file(str(path))
    return path


@pytest.mark.parametrize("tag", TAGS)
def test_the_same_objects_in_other_places_give_the_same_bytes(tag: str, tmp_path: Path) -> None:
    target = Target.from_tag(tag)
    first = object_file(tmp_path / "a.o", target, "expf")
    elsewhere = tmp_path / "some" / "where" / "else"
    elsewhere.mkdir(parents=True)
    second = Path(shutil.copy(first, elsewhere / "another_name.o"))
    linked = link([first], target)
    assert linked == link([second], target)
    assert str(tmp_path).encode() not in linked
    assert b"forge-link" not in linked


def test_no_program_of_the_path_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.from_tag("raspberry-pi/5")
    objects = [object_file(tmp_path / "a.o", target, "expf")]
    linked = link(objects, target)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert link(objects, target) == linked


@pytest.mark.parametrize(
    ("tag", "library"), [("x86-64/v3", b"libm.so.6"), ("raspberry-pi/5", b"libm.so.6"), ("android/cpu", b"libm.so")]
)
def test_the_library_names_the_c_libraries_that_it_calls(tag: str, library: bytes, tmp_path: Path) -> None:
    target = Target.from_tag(tag)
    linked = link([object_file(tmp_path / "a.o", target, "expf")], target)
    assert b"\0" + library + b"\0" in linked
    assert b"libc.so" not in linked  # nothing in it calls memcpy or the like


@pytest.mark.parametrize("tag", TAGS[:4])
def test_a_call_that_no_library_on_the_device_answers_is_refused_by_name(tag: str, tmp_path: Path) -> None:
    target = Target.from_tag(tag)
    with pytest.raises(CompileError) as refusal:
        link([object_file(tmp_path / "a.o", target, "no_such_function")], target)
    assert refusal.value.where == f"link for {tag}"
    assert refusal.value.found == "calls of no_such_function"


def test_bionic_has_ldexp_where_memcpy_is_and_no_bcmp(tmp_path: Path) -> None:
    target = Target.from_tag("android/cpu")
    assert b"\0libc.so\0" in link([object_file(tmp_path / "a.o", target, "ldexp")], target)
    with pytest.raises(CompileError, match="bcmp"):
        link([object_file(tmp_path / "b.o", target, "bcmp")], target)


def test_an_object_for_another_machine_is_refused_in_the_linkers_words(tmp_path: Path) -> None:
    made_for = Target.from_tag("x86-64/v3")
    with pytest.raises(CompileError, match="incompatible with aarch64linux"):
        link([object_file(tmp_path / "a.o", made_for, "expf")], Target.from_tag("raspberry-pi/5"))


def test_an_architecture_without_a_linker_is_refused(tmp_path: Path) -> None:
    import dataclasses

    unknown = dataclasses.replace(Target.from_tag("raspberry-pi/5"), triple="s390x-linux-gnu")
    with pytest.raises(TargetError, match="s390x-linux-gnu"):
        link([tmp_path / "none.o"], unknown)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_the_library_has_no_executable_stack_no_text_relocations_and_read_only_tables(tmp_path: Path) -> None:
    target = Target.from_tag("x86-64/v3")
    path = tmp_path / "linked.so"
    path.write_bytes(link([object_file(tmp_path / "a.o", target, "expf")], target))
    shown = subprocess.run(["readelf", "-Wld", path], capture_output=True, text=True, check=True).stdout
    assert "GNU_RELRO" in shown
    assert "BIND_NOW" in shown
    assert "TEXTREL" not in shown
    assert "GNU_STACK" in shown
    assert not any("RWE" in line for line in shown.splitlines())
