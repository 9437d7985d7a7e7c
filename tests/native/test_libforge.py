"""libforge: the examples, by the commands that docs/runtime.md shows, and what only its interface can do."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine
from forge_runtime.library import SAME, Call
from tests.support import forge as codes
from tests.support.decoders import decoder, kept
from tests.support.forge import CANCELLED, DAMAGED, FILE, INPUT, UNSUPPORTED, USAGE, Array, Forge, Time
from tests.support.native import ROOT, RUNTIME

RANDOM = np.random.default_rng(5)


@pytest.fixture
def forge(runtime: Path) -> Forge:
    return Forge(runtime / "libforge.so")


@pytest.fixture
def library(libraries: Path) -> Path:
    return libraries / "convolutions.so"


def images(batch: int) -> np.ndarray:
    return RANDOM.standard_normal((batch, 3, 24, 24)).astype(np.float32)


@pytest.mark.every(2)
@pytest.mark.parametrize("language", ["c", "cpp"])
@pytest.mark.parametrize("form", ["so", "a"])
def test_the_documented_commands_build_an_example(
    runtime: Path, library: Path, tmp_path: Path, language: str, form: str
) -> None:
    text = (ROOT / "docs" / "runtime.md").read_text("utf-8")
    pattern = rf"^    ((?:cc|c\+\+) .*examples/run\.{language} .*libforge\.{form}.*)$"
    command = re.search(pattern, text, re.MULTILINE)
    assert command is not None
    words = shlex.split(command[1].replace("ARCH", runtime.name))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    subprocess.run(
        [*words, "-o", str(tmp_path / "run"), "-Wall", "-Wextra", "-Werror"], cwd=ROOT, check=True, timeout=120
    )
    options = {
        "env": {**os.environ, "LD_LIBRARY_PATH": str(runtime)},
        "capture_output": True,
        "text": True,
        "timeout": 60,
    }
    done = subprocess.run([tmp_path / "run", library], check=True, **options)
    (wanted,) = Engine(library, threads=1)(np.zeros((1, 3, 24, 24), np.float32))
    assert [float.fromhex(line) for line in done.stdout.split()] == [float(value) for value in wanted[0]]
    done = subprocess.run([tmp_path / "run", RUNTIME / "build.py"], check=False, **options)
    assert (done.returncode, done.stderr.count("expected a library of forge-pipeline")) == (1, 1)


def test_a_prompt_is_written_on_in_c_as_in_python(runtime: Path, tmp_path: Path) -> None:
    command = re.search(
        r"^    (cc .*examples/generate\.c .*)$", (ROOT / "docs" / "runtime.md").read_text(), re.MULTILINE
    )
    assert command is not None
    words = shlex.split(command[1].replace("ARCH", runtime.name))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    build = [*words, "-o", str(tmp_path / "generate"), "-Wall", "-Wextra", "-Werror"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120)
    path, prompt, wanted = tmp_path / "model_library.so", [3, 17, 42], []
    path.write_bytes(kept(decoder(layers=1)).to_bytes())
    engine, tokens = Engine(path, threads=1), np.array([prompt])
    for _ in range(12):
        (scores,) = engine(tokens)
        tokens = scores[:, -1:].argmax(-1)
        wanted.append(int(tokens[0, 0]))
    run = [str(tmp_path / "generate"), str(path), "12", *map(str, prompt)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    assert [int(line) for line in done.stdout.split()] == wanted
    run[2] = "40"
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "at most 32 along its axis" in done.stderr


def test_the_numbers_of_errors_are_those_of_the_header() -> None:
    header = (RUNTIME / "include" / "forge.h").read_text("utf-8")
    names = re.findall(r"^    FORGE_([A-Z]+),?\s", header, re.MULTILINE)
    assert {name: number for number, name in enumerate(names) if number} == {
        name: value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)
    }


def test_sessions_of_one_model_run_at_the_same_time(forge: Forge, library: Path) -> None:
    model, engine = forge.open(library), Engine(library, threads=1)
    failures: list[object] = []

    def work(threads: int) -> None:
        session = forge.start(model, threads)
        for turn in range(20):
            given, found = images(1 + turn % 3), np.empty((1 + turn % 3, 5), np.float32)
            output = Array.of(found)
            if forge.run(session, [given], [output]) or not np.array_equal(found, engine(given)[0]):
                failures.append((threads, turn, forge.message()))
        forge.c.forge_stop(session)

    workers = [threading.Thread(target=work, args=(1 + index % 2,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    forge.c.forge_close(model)
    assert not failures


def test_outputs_may_stay_in_the_session(forge: Forge, library: Path) -> None:
    model = forge.open(library)
    session, output, given = forge.start(model), Array(), images(2)
    assert forge.run(session, [given], [output]) == 0
    assert (output.size, list(output.shape[:2])) == (40, [2, 5])
    found = np.frombuffer(ctypes.string_at(output.data, output.size), np.float32)
    assert np.array_equal(found.reshape(2, 5), Engine(library, threads=1)(given)[0])
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


def test_a_call_that_is_repeated_says_whether_its_outputs_lie_as_before(forge: Forge, library: Path) -> None:
    model = forge.open(library)
    session, engine = forge.start(model), Engine(library, threads=1)
    given, output = images(2), Array()
    places = Array.of(given)
    call = Call(session, ctypes.addressof(places), ctypes.addressof(output))
    codes = []
    for turn in range(3):
        given *= turn + 1
        codes.append(forge.c.forge_repeat(ctypes.byref(call)))
        found = np.frombuffer(ctypes.string_at(output.data, output.size), np.float32)
        assert np.array_equal(found.reshape(2, 5), engine(given)[0])
    assert codes == [0, SAME, SAME]
    output.shape[0] = 3
    assert forge.c.forge_repeat(ctypes.byref(call)) == 0
    places.size -= 4
    assert forge.c.forge_repeat(ctypes.byref(call)) == INPUT
    assert forge.c.forge_repeat(None) == USAGE
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


def test_memory_that_is_not_aligned_is_as_good(forge: Forge, library: Path) -> None:
    data = library.read_bytes()
    given = np.frombuffer(bytearray(images(1).nbytes + 4), np.uint8)[4:].view(np.float32).reshape(1, 3, 24, 24)
    given[...] = images(1)
    (wanted,) = Engine(library, threads=1)(given)
    room = np.zeros(len(data) + 128, np.uint8)
    for offset in (0, 1):
        start = -room.ctypes.data % 64 + offset
        room[start : start + len(data)] = np.frombuffer(data, np.uint8)
        model, found = ctypes.c_void_p(), np.empty((1, 5), np.float32)
        assert forge.open_memory(room[start:], len(data), model) == 0, forge.message()
        session = forge.start(model)
        assert forge.run(session, [given], [Array.of(found)]) == 0
        assert np.array_equal(found, wanted)
        forge.c.forge_stop(session)
        forge.c.forge_close(model)


def test_a_call_that_is_cancelled_ends_and_the_next_one_runs(forge: Forge, library: Path) -> None:
    model = forge.open(library)
    session = forge.start(model)
    forge.c.forge_cancel(session)
    assert forge.run(session, [images(1)], [Array()]) == CANCELLED
    assert "cancelled" in forge.message()
    assert forge.run(session, [images(1)], [Array()]) == 0
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


def test_a_profile_counts_the_kernels(forge: Forge, library: Path) -> None:
    model = forge.open(library)
    session, time = forge.start(model, 2), Time()
    assert forge.c.forge_profile(session, 1) == 0
    for _ in range(3):
        assert forge.run(session, [images(1)], [Array()]) == 0
    calls = []
    for index in range(forge.c.forge_places(session)):
        assert forge.c.forge_place_time(session, index, ctypes.byref(time)) == 0
        assert time.name.startswith(b"__tvm_ffi_")
        calls.append(time.calls)
    assert max(calls) >= 3
    assert all(count % 3 == 0 for count in calls)
    assert forge.c.forge_place_time(session, -1, ctypes.byref(time)) == USAGE
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


def test_every_misuse_has_a_code_and_a_sentence(forge: Forge, library: Path, tmp_path: Path) -> None:
    def opened(path: Path) -> int:
        return forge.c.forge_open(str(path).encode(), None, None, ctypes.c_size_t(0), ctypes.byref(ctypes.c_void_p()))

    damaged, bare = tmp_path / "damaged.so", tmp_path / "bare.so"
    damaged.write_bytes(library.read_bytes()[:-1])
    bare.write_bytes(dataclasses.replace(Library.from_bytes(library.read_bytes()), program=b"").to_bytes())
    model = forge.open(library)
    session = forge.start(model)
    small = Array.of(np.empty((1, 4), np.float32))
    for code, call in (
        (FILE, lambda: opened(tmp_path / "none")),
        (DAMAGED, lambda: opened(damaged)),
        (UNSUPPORTED, lambda: opened(bare)),
        (USAGE, lambda: forge.c.forge_open(None, None, None, ctypes.c_size_t(0), ctypes.byref(ctypes.c_void_p()))),
        (USAGE, lambda: forge.c.forge_start(model, 0, ctypes.byref(ctypes.c_void_p()))),
        (USAGE, lambda: forge.c.forge_set_threads(session, 65)),
        (USAGE, lambda: forge.c.forge_run(session, None, None)),
        (INPUT, lambda: forge.run(session, [images(1)[:, :2]], [Array()])),
        (INPUT, lambda: forge.run(session, [images(1).astype(np.float64)], [Array()])),
        (INPUT, lambda: forge.run(session, [images(1)], [small])),
    ):
        assert call() == code, forge.message()
        assert re.fullmatch(r".+: expected .+, found .+\nfix: .+", forge.message())
    assert forge.c.forge_set_threads(session, 2) == 0
    assert forge.run(session, [images(1)], [Array()]) == 0
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


def test_threads_stay_on_the_cpus_that_they_are_given(forge: Forge, library: Path) -> None:
    def allowed() -> dict[int, set[int]]:
        return {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}

    def pinned(*cpus: int) -> int:
        return int(forge.c.forge_pin(session, (ctypes.c_uint32 * len(cpus))(*cpus), len(cpus)))

    here, before = min(os.sched_getaffinity(0)), allowed()
    model = forge.open(library)
    session = forge.start(model, 3)
    assert pinned(here) == 0
    after = allowed()
    own = set(after) - set(before)
    assert len(own) == 2
    assert forge.run(session, [images(4)], [Array()]) == 0
    for _ in range(1000):  # a thread pins itself as it starts
        if all(os.sched_getaffinity(task) == {here} for task in own):
            break
        time.sleep(0.01)
    else:
        pytest.fail(f"threads on {[os.sched_getaffinity(task) for task in own]}")
    assert os.sched_getaffinity(0) == before[threading.get_native_id()]
    assert pinned(here, 1023) == pinned(here, 1 << 20) == USAGE
    assert "found 1048576" in forge.message()
    assert forge.c.forge_pin(session, None, 0) == 0
    assert all(cpus == before[threading.get_native_id()] for task, cpus in allowed().items() if task not in before)
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_workers_that_are_woken_keep_off_the_cpu_of_the_caller(forge: Forge, library: Path) -> None:
    everywhere = os.sched_getaffinity(0)
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    model = forge.open(library)
    session = forge.start(model, 2)
    (worker,) = {int(task.name) for task in Path("/proc/self/task").iterdir() if task.name not in before}
    try:
        for here in sorted(everywhere)[:2]:
            os.sched_setaffinity(0, {here})
            for _ in range(3000):  # it sleeps where it has had nothing to do for a while; short runs seldom wake it
                assert forge.run(session, [images(4)], [Array()]) == 0
                if os.sched_getaffinity(worker) == everywhere - {here}:
                    break
                time.sleep(0.001)
            else:
                pytest.fail(f"a worker on {os.sched_getaffinity(worker)}, called from {here}")
    finally:
        os.sched_setaffinity(0, everywhere)
    forge.c.forge_stop(session)
    forge.c.forge_close(model)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(("batch", "runs", "wakes"), [(1, 500, range(100)), (400, 50, range(45, 1000))])
def test_short_runs_seldom_wake_a_worker_and_long_ones_do(
    forge: Forge, library: Path, batch: int, runs: int, wakes: range
) -> None:
    given = images(batch)

    def slept() -> int:
        before = {task.name for task in Path("/proc/self/task").iterdir()}
        session = forge.start(model, 2)
        (worker,) = (task for task in Path("/proc/self/task").iterdir() if task.name not in before)
        for _ in range(runs):
            assert forge.run(session, [given], [Array()]) == 0
            time.sleep(0.002)
        times = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (worker / "status").read_text(), re.M)
        forge.c.forge_stop(session)
        return int(times[0])

    model = forge.open(library)
    assert any(slept() in wakes for _ in range(3))  # what else the machine does may decide one trial
    forge.c.forge_close(model)


def test_memory_stays_flat(forge: Forge, libraries: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def turn(count: int) -> None:
        for _ in range(count):
            model = forge.open(libraries / "open_sizes.so")
            session = forge.start(model, 2)
            for size in (2, 5, 3):
                given = RANDOM.standard_normal((size, 3, 48)).astype(np.float32)
                assert forge.run(session, [given, given], [Array(), Array()]) == 0
            forge.c.forge_stop(session)
            forge.c.forge_close(model)

    turn(20)
    before = resident()
    turn(100)
    assert resident() - before < 256  # pages; a session that stayed would be some thousand
