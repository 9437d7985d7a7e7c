"""Where an artifact is run: the choice, the emulators, and that all places compute the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.errors import ArtifactError, ConfigError, MachineError, TargetError
from forge_pipeline.runners.choice import DECIDING, effort_of, place_of, without_host
from forge_pipeline.runners.contract import Place, refusal
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.emulators import Emulator, emulator, emulator_for, own_words, qemu
from forge_pipeline.runners.here import Here
from forge_pipeline.runners.samples import ran
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target
from forge_pipeline.target.description import why_not_here
from tests.support.native import convolutions, library_of, open_sizes
from tests.support.sums import assert_close

DEVICE: dict[str, Any] = {
    "name": "lab", "host": "192.0.2.1", "user": "u", "port": 22, "identity": None, "known_hosts": "known",
    "folder": "/tmp/board", "prefix": (), "cpus": (), "cool_down": 0.0, "silence": 15.0, "wait": 1.0, "retries": 0,
}  # fmt: skip
LEVELS = ("x86-64/v2", "x86-64/v3")
FOREIGN = ("raspberry-pi/5", "android/cpu", "riscv64/generic")


def metadata(tag: str) -> dict[str, Any]:
    target = Target.from_tag(tag)
    return {"tag": tag, "triple": target.triple, "cpu": target.cpu, "cpu_flags": list(target.cpu_flags)}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def config(tag: str) -> dict[str, Any]:
    target = asdict(Target.from_tag(tag))
    return {"tag": tag} if tag == "host" else {name: target[name] for name in DECIDING}


def test_the_place_is_the_same_for_any_version_and_path_of_qemu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, "qemu-aarch64-static", "qemu-riscv64")
    names = {tag: emulator_for(*(metadata(tag)[key] for key in ("triple", "cpu", "cpu_flags"))) for tag in FOREIGN}
    assert {tag: place.name for tag, place in names.items() if isinstance(place, Emulator)} == {
        "raspberry-pi/5": "qemu-aarch64 -cpu cortex-a76",
        "android/cpu": "qemu-aarch64 -cpu cortex-a53",
        "riscv64/generic": "qemu-riscv64 -cpu rv64",
    }


def test_what_runs_an_artifact_is_part_of_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert place_of("auto", config("host"), None) == "host"
    foreign = next(tag for tag in FOREIGN if why_not_here(Target.from_tag(tag)))
    installed(monkeypatch, tmp_path)
    assert place_of("auto", config(foreign), None) is None
    assert place_of("auto", config(foreign), {"name": "lab"}) == "lab"
    assert place_of("auto", config("host"), {"name": "lab"}) == "lab"
    assert place_of("host", config("host"), {"name": "lab"}) == "host"
    assert place_of("none", config("host"), None) is None
    installed(monkeypatch, tmp_path, "qemu-aarch64", "qemu-riscv64", "qemu-x86_64")
    assert str(place_of("auto", config(foreign), None)).startswith("qemu-")


def test_no_emulator_of_a_cpu_runs_what_is_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, "qemu-x86_64")
    gpu = Target.from_tag("cuda/sm_80")
    assert place_of("auto", config(gpu.tag), None) is None
    assert effort_of(gpu) == 0
    assert without_host("auto", asdict(gpu), None) == "nothing emulates the GPU of cuda/sm_80"
    with pytest.raises(TargetError, match="nothing emulates the GPU"):
        without_host("emulator", asdict(gpu), None)


def test_what_an_emulator_runs_takes_longest_and_what_nothing_runs_least(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    foreign = Target.from_tag(next(tag for tag in FOREIGN if why_not_here(Target.from_tag(tag))))
    installed(monkeypatch, tmp_path)
    assert (effort_of(foreign), effort_of(Target.from_tag("host"))) == (0, 1)
    installed(monkeypatch, tmp_path, "qemu-aarch64", "qemu-riscv64", "qemu-x86_64")
    assert effort_of(foreign) == 2


def test_without_an_emulator_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path)
    assert without_host("auto", metadata("raspberry-pi/5"), None) == (
        "qemu-aarch64 is not installed: apt-get install qemu-user"
    )
    with pytest.raises(TargetError, match="apt-get install qemu-user"):
        without_host("emulator", metadata("raspberry-pi/5"), None)


def test_an_emulator_of_ones_own_comes_before_qemu_by_a_name_without_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, "qemu-aarch64", "sde64")
    words = own_words({"x86-64/v4": [str(tmp_path / "sde64"), "-skx", "--"]}, "x86-64/v4")
    found = without_host("auto", metadata("x86-64/v4"), None, words)
    assert isinstance(found, Emulator)
    assert found.command == (str(tmp_path / "sde64"), "-skx", "--")
    assert place_of("emulator", config("x86-64/v4"), None, ["sde64", "-skx", "--"]) == found.name == "sde64 -skx --"
    assert own_words({"x86-64/v4": ["sde64"]}, "raspberry-pi/5") == []
    assert "there is no program sde63" in str(without_host("auto", metadata("x86-64/v4"), None, ["sde63"]))


@pytest.mark.parametrize("emulators", [["sde64"], {"x86-64/v4": "sde64"}, {"x86-64/v4": [64]}, {"x86-64/v4": [""]}])
def test_an_emulator_that_is_no_program_with_arguments_is_refused(emulators: Any) -> None:
    with pytest.raises(ConfigError, match=r"evaluate.emulators: expected a program and its arguments by target tag"):
        own_words(emulators, "x86-64/v4")


def test_a_misspelt_tag_of_an_emulator_is_refused_and_one_of_ones_own_is_not() -> None:
    with pytest.raises(ConfigError, match=r"found x86_64/v4\n.*did you mean 'x86-64/v4'"):
        own_words({"x86_64/v4": ["sde64"]}, "x86-64/v3")
    assert own_words({"x86-64/v4-mine": ["sde64"], "arm/cortex-m85": ["sde64"]}, "x86-64/v3") == []


def test_what_qemu_lacks_is_named() -> None:
    assert without_host("auto", metadata("arm/cortex-m7"), None) == (
        f"no emulator runs forge-run for {Target.from_tag('arm/cortex-m7').triple}"
    )
    assert "QEMU does not emulate avx512" in str(without_host("auto", metadata("x86-64/v4"), None))


def test_ssh_needs_a_device() -> None:
    with pytest.raises(ConfigError, match="choose device=NAME"):
        without_host("ssh", metadata("raspberry-pi/5"), None)


@pytest.mark.parametrize(
    "change",
    [{"port": 0}, {"host": "-oProxyCommand=x"}, {"user": "a b"}, {"folder": "here"}, {"silence": 0.5}, {"retries": -1}],
)
def test_a_device_that_cannot_be_meant_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"device.{next(iter(change))}"):
        Device(**(DEVICE | change))


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (1, "error: library: expected this, found a CPU without sve\nfix: that", MachineError),
        (1, "error: library: expected this, found one made for riscv64-linux-gnu\nfix: that", MachineError),
        (1, "error: input x: expected this, found another\nfix: that", ArtifactError),
        (-4, "qemu: uncaught target signal 4 (Illegal instruction) - core dumped", MachineError),
        (132, "", MachineError),
        (-11, "", ArtifactError),
    ],
)
def test_how_forge_run_ends_decides_the_error(status: int, said: str, kind: type[ArtifactError]) -> None:
    error = refusal("a place", status, said)
    assert type(error) is kind
    assert "a place" in error.where


def test_a_file_is_named_as_its_reader_knows_it() -> None:
    said = "error: program of the /tmp/x/lib.so: expected this, found that\nfix: no"
    assert refusal("a place", 1, said, {"/tmp/x/lib.so": "library"}).where == "program of the library, in a place"


@pytest.fixture(scope="module")
def foreign() -> Library:
    return library_of(convolutions(), "raspberry-pi/5")


def outputs(place: Place, library: Library, feeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with ran(place, library, feeds, runs=2) as found:
        return [dict(each) for each in found.outputs]


def test_a_process_of_its_own_computes_what_an_engine_does() -> None:
    library = library_of(open_sizes())
    random = np.random.default_rng(5)
    feeds = [{name: random.standard_normal((n, 3, 48)).astype("f") for name in "ab"} for n in (2, 1, 4)]
    engine = loaded(library, threads=1)
    for have, feed in zip(outputs(Here(), library, feeds), feeds, strict=True):
        for name, want in engine.run(**feed).items():
            assert (have[name].shape, have[name].tobytes()) == (want.shape, want.tobytes())


def test_bits_of_bfloat16_and_truth_values_go_both_ways() -> None:
    import ml_dtypes

    text = """<ir_version: 10, opset_import: ["": 18]>
    g (bfloat16[N] x, bool[N] c) => (bfloat16[N] y, bool[N] d) { y = Identity (x) d = Not (c) }"""
    library = library_of(onnx.parser.parse_model(text))
    feed = {"x": np.array([1.5, -3, 0]).astype(ml_dtypes.bfloat16), "c": np.array([True, False, True])}
    (found,) = outputs(Here(), library, [feed])
    assert (found["y"].dtype, found["y"].tolist()) == (feed["x"].dtype, feed["x"].tolist())
    assert found["d"].tolist() == [False, True, False]


def test_a_model_without_inputs_is_run_once() -> None:
    text = """<ir_version: 10, opset_import: ["": 18]>
    g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }"""
    library = library_of(onnx.parser.parse_model(text))
    with ran(Here(), library, [{}, {}], runs=0) as found:
        assert [found({})["y"].tolist() for _ in range(2)] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize(
    "tag",
    ["raspberry-pi/5", *(pytest.param(tag, marks=pytest.mark.long) for tag in ("riscv64/generic", *LEVELS))],
)
def test_an_emulator_computes_what_this_machine_does(tag: str, foreign: Library) -> None:
    target = Target.from_tag(tag)
    if emulator(target.arch) is None:
        pytest.skip(f"qemu-{target.arch} is not installed: apt-get install qemu-user")
    place = emulator_for(target.triple, target.cpu, target.cpu_flags)
    assert isinstance(place, Emulator)
    feeds = [{"x": np.random.default_rng(n).standard_normal((n, 3, 24, 24)).astype("f")} for n in (1, 3)]
    engine = loaded(library_of(convolutions()), threads=1)
    library = foreign if tag == "raspberry-pi/5" else library_of(convolutions(), tag)
    for have, feed in zip(outputs(place, library, feeds), feeds, strict=True):
        assert_close(have["y"], engine(**feed)[0], within=1e-5)


@pytest.mark.long
def test_an_emulated_level_of_x86_has_no_more_than_it() -> None:
    place = emulator_for(*(metadata("x86-64/v2")[key] for key in ("triple", "cpu", "cpu_flags")))
    if not isinstance(place, Emulator):
        pytest.skip(place)
    with pytest.raises(MachineError, match="expected instructions that it has"):
        outputs(place, library_of(convolutions(), "x86-64/v3"), [{"x": np.zeros((1, 3, 24, 24), "f")}])


def test_an_emulated_cpu_without_the_instructions_is_refused(foreign: Library) -> None:
    program = emulator("aarch64")
    if program is None:
        pytest.skip("qemu-aarch64 is not installed: apt-get install qemu-user")
    feeds = [{"x": np.zeros((1, 3, 24, 24), "f")}]
    with pytest.raises(MachineError, match="a CPU without asimd"):
        outputs(qemu("aarch64", program, "cortex-a53"), foreign, feeds)
