"""forge-run computes what an engine does, to the bit, and refuses everything else in words."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine
from tests.support.delivery import deliver
from tests.support.native import Runner, mended

RANDOM = np.random.default_rng(11)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture
def copy(libraries: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copy(libraries / f"{name}.so", tmp_path / f"{name}.so"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("convolutions", [(1, 3, 24, 24)]),
        ("convolutions", [(3, 3, 24, 24)]),
        ("open_sizes", [(2, 3, 48), (2, 3, 48)]),
        ("open_sizes", [(1, 6, 48), (1, 6, 48)]),
        ("recurrent", [(1, 1, 6)]),
        ("recurrent", [(7, 3, 6)]),
    ],
)
def test_it_computes_what_an_engine_does(
    copy: Callable[[str], Path], runner: Runner, name: str, shapes: list[tuple[int, ...]], threads: int
) -> None:
    library, inputs = copy(name), [array(*shape) for shape in shapes]
    outputs = runner.call(library, inputs, "--threads", str(threads), "--runs", "3", "--memory")
    for found, wanted in zip(outputs, Engine(library, threads=threads)(*inputs), strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def test_threads_share_a_cpu(copy: Callable[[str], Path], runner: Runner) -> None:
    library, given = copy("convolutions"), array(3, 3, 24, 24)
    cpu = str(min(os.sched_getaffinity(0)))
    (found,) = runner.call(library, [given], "--threads", "3", "--cpus", cpu)
    assert found.tobytes() == Engine(library, threads=1)(given)[0].tobytes()


def test_nothing_runs_for_arrays_without_elements(copy: Callable[[str], Path], runner: Runner) -> None:
    (found,) = runner.call(copy("convolutions"), [array(0, 3, 24, 24)])
    assert found.shape == (0, 5)


def test_inputs_have_names_and_sizes(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    library = copy("open_sizes")
    np.save(tmp_path / "b.npy", array(4, 5, 48))
    done = runner.start(library, f"b={tmp_path / 'b.npy'}", "--size", "n=4")
    assert "input a: float32 [4, 5, 48]" in done.stdout
    done = runner.start(library, "--size", "n=2", "--size", "m=2", "--size", "s=3", "--runs", "4", "--profile")
    assert "output z: float32 [12, 24]" in done.stdout
    assert "4 runs, 1 threads: least " in done.stdout
    assert " 4 calls  __tvm_ffi_" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "nn=4"], "--size: expected an open size of the library: n, s, m, found nn"),
        (["--size", "k=4"], "found k"),  # of an output
        (["--size", "=4"], "open size of the library: n, s, m, found "),
        (["--size", "4"], "--size: expected NAME=N, found 4"),
        (["--size", "n=two"], "--size: expected n=N, found two"),
        (["--size", "n=2", "--size", "n=3"], "--size: expected n=2, which input a has, found 3"),
    ],
)
def test_a_size_that_is_none_is_refused(
    copy: Callable[[str], Path], runner: Runner, words: list[str], said: str
) -> None:
    refused(runner.start(copy("open_sizes"), *words), 2, said)


def test_a_size_that_a_file_contradicts_is_refused(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    library, path = copy("convolutions"), tmp_path / "x.npy"
    np.save(path, array(2, 3, 24, 24))
    for words in ([], ["--samples"]):
        assert runner.start(library, path, *words, "--size", "n=2").returncode == 0
        done = runner.start(library, path, *words, "--size", "n=4")
        refused(done, 2, "--size: expected n=2, which input x has, found 4")


def test_outputs_are_compared_with_what_is_expected(
    copy: Callable[[str], Path], runner: Runner, tmp_path: Path
) -> None:
    library, given = copy("convolutions"), array(2, 3, 24, 24)
    np.save(tmp_path / "x.npy", given)
    (wanted,) = Engine(library, threads=1)(given)
    np.save(tmp_path / "y.npy", wanted)
    exact = ["--rtol", "0", "--atol", "0"]
    assert runner.start(library, tmp_path / "x.npy", "--expect", f"y={tmp_path / 'y.npy'}", *exact).returncode == 0
    np.save(tmp_path / "y.npy", wanted + np.float32(1e-3))
    done = runner.start(library, tmp_path / "x.npy", "--expect", tmp_path / "y.npy")
    assert (done.returncode, "10 of 10 elements outside, by 1.00e-3 at most" in done.stderr) == (1, True)
    assert runner.start(library, tmp_path / "x.npy", "--expect", tmp_path / "y.npy", "--atol", "2e-3").returncode == 0


def refused(done: object, code: int, *said: str) -> None:
    assert done.returncode == code, done  # type: ignore[attr-defined]
    text = done.stderr  # type: ignore[attr-defined]
    assert text.startswith("error: ")
    assert text.count("\n") == 2
    assert "\nfix: " in text
    for part in said:
        assert part in text, text


def test_a_wrong_command_line_is_usage(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    library = copy("convolutions")
    np.save(tmp_path / "x.npy", array(1, 3, 24, 24))
    refused(runner.start(), 2, "expected a library, found none")
    refused(runner.start(library, "--thread", "2"), 2, "found --thread")
    refused(runner.start(library, "--runs"), 2, "--runs: expected a value")
    refused(runner.start(library, "--runs", "many"), 2, "found many")
    refused(runner.start(library, "--threads", "65"), 2, "expected 1 to 64, found 65")
    refused(runner.start(library, "--cpus", "0,1023"), 2, "found 1023")
    refused(runner.start(library, "--cpus", "0,,1"), 2, "--cpus: expected a number")
    refused(runner.start(library, f"q={tmp_path / 'x.npy'}"), 2, "such as x, found q")
    refused(runner.start(library, tmp_path / "x.npy", tmp_path / "x.npy"), 2, "at most 1 inputs")


def test_arrays_that_do_not_fit_are_refused(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for given, said in (
        (array(1, 3, 24), "expected float32 of 4 axes, found float32 of 3"),
        (array(1, 3, 24, 24).astype(np.float64), "found float64 of 4"),
        (array(1, 3, 24, 25), "expected 24 along axis 3, found 25"),
        (np.asfortranarray(array(2, 3, 24, 24)), "Fortran order"),
    ):
        np.save(path, given)
        refused(runner.start(copy("convolutions"), path), 1, said)
    path.write_bytes(path.read_bytes()[:-4])
    refused(runner.start(copy("convolutions"), path), 1, "x.npy: expected an array")


def test_sizes_that_do_not_go_together_are_refused(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array(2, 3, 48))
    np.save(tmp_path / "b.npy", array(3, 3, 48))
    refused(
        runner.start(copy("open_sizes"), tmp_path / "a.npy", tmp_path / "b.npy"), 1, "expected sizes that go together"
    )
    np.save(tmp_path / "b.npy", array(2, 4, 48))
    refused(
        runner.start(copy("open_sizes"), tmp_path / "a.npy", tmp_path / "b.npy"), 1, "expected 3 along axis 1, found 4"
    )


def test_a_model_without_a_program_is_refused(copy: Callable[[str], Path], runner: Runner) -> None:
    path = copy("convolutions")
    path.write_bytes(dataclasses.replace(Library.from_bytes(path.read_bytes()), program=b"").to_bytes())
    refused(runner.start(path), 1, "found one without a program", "compile the model for a CPU")


def test_files_that_are_no_library_are_refused(copy: Callable[[str], Path], runner: Runner, tmp_path: Path) -> None:
    path = copy("convolutions")
    library = path.read_bytes()
    missing = tmp_path / "none.so"
    refused(runner.start(missing), 1, f"{missing}: expected a file that can be read, found no such file")
    refused(runner.start(path, "--output", tmp_path / "nowhere"), 1, "can be written, found no such folder")
    refused(runner.start(tmp_path), 1, "expected a file that can be read")
    for changed, said in (
        (b"", "cut off, or another kind of file"),
        (library[:-1], "cut off"),
        (library[4096:], "lengths that do not account for the file"),
        (library[:5000] + bytes([library[5000] ^ 1]) + library[5001:], "altered or damaged"),
        (mended(library[:-88] + b"\0\3" + library[-86:]), "another format"),
        (mended(library[:18] + b"\xff\xff" + library[20:]), "found that for machine 65535"),
    ):
        path.write_bytes(changed)
        refused(runner.start(path), 1, said, f"{path}: expected ")


def test_another_cpu_is_named(copy: Callable[[str], Path], runner: Runner) -> None:
    path = copy("convolutions")
    library = path.read_bytes()
    flag = b"\0avx2\0" if b"\0avx2\0" in library else None
    if flag is None:
        pytest.skip("libraries for this CPU need no instructions that have a name")
    path.write_bytes(mended(library.replace(flag, b"\0avx3\0")))
    refused(runner.start(path), 1, "found a CPU without avx3", f"error: {path}: expected ")


def test_an_encrypted_model_is_opened_with_its_key_and_password(
    copy: Callable[[str], Path], runner: Runner, tmp_path: Path
) -> None:
    plain = copy("convolutions")
    given = array(1, 3, 24, 24)
    (wanted,) = runner.call(plain, [given])
    sealed, other = deliver(plain.read_bytes(), 1), deliver(plain.read_bytes(), 2)
    model, key, password = tmp_path / "model.so", tmp_path / "key.bin", tmp_path / "password"
    model.write_bytes(sealed.model)
    key.write_bytes(sealed.key)
    password.write_bytes(b"correct horse\n")
    options = ["--key", str(key), "--password-file", str(password)]
    (found,) = runner.call(model, [given], *options)
    assert found.tobytes() == wanted.tobytes()
    asked = "found no --key\nfix: give both: --key modelKey.bin --password-file FILE\n"
    refused(runner.start(model), 1, f"{model}: expected its key file and password, {asked}")
    password.write_bytes(b"wrong horse")
    refused(runner.start(model, *options), 1, f"error: {key}: expected the password that this key was made with")
    password.write_bytes(b"correct horse")
    key.write_bytes(other.key)
    refused(runner.start(model, *options), 1, "that of another model")
    key.write_bytes(sealed.key[:-1])
    refused(runner.start(model, *options), 1, f"error: {key}: expected that of this model")
    key.write_bytes(sealed.key)
    for place, said in ((13, "another version"), (140, "its header"), (-100, "its contents")):
        changed = bytearray(sealed.model)
        changed[place] ^= 1
        model.write_bytes(changed)
        refused(runner.start(model, *options), 1, said)
    model.write_bytes(sealed.model[:-1])
    refused(runner.start(model, *options), 1, "cut off")


def test_json_is_one_line(copy: Callable[[str], Path], runner: Runner) -> None:
    done = runner.start(copy("convolutions"), "--json", "--runs", "20")
    found = json.loads(done.stdout)
    assert found["runs"] == 20
    assert 0 < found["least_ms"] <= found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"]


def test_no_more_runs_than_the_seconds_allow_but_three(copy: Callable[[str], Path], runner: Runner) -> None:
    path = copy("convolutions")
    assert json.loads(runner.start(path, "--json", "--runs", "20", "--seconds", "0").stdout)["runs"] == 3
    assert json.loads(runner.start(path, "--json", "--runs", "20", "--seconds", "60").stdout)["runs"] == 20
    refused(runner.start(path, "--seconds", "soon"), 2, "found soon")
