"""What engines leave in the process that they run in: memory, threads, forks. Each test has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target

THREADS = sorted({1, min(2, os.cpu_count() or 1)})
SECONDS = 60
"""Far more than any of them takes: whoever needs longer hangs."""

START = """
import functools, gc, multiprocessing, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from forge_pipeline import Engine, ForgeError

path, threads = sys.argv[1], int(sys.argv[2])
WEIGHT = np.load(sys.argv[3])

def status(field):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0])

def mib():
    return status("VmRSS") / 1024

def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 16), np.float32)

def right(engine, count, seed=0):
    x = rows(count, seed)
    product = functools.partial(np.einsum, "ni,io")  # no BLAS: OpenBLAS warns of more than 64 threads
    return np.allclose(engine(x)[0], product(np.maximum(product(x, WEIGHT), 0), WEIGHT), rtol=1e-4, atol=1e-4)

"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the paths of x[n, 16] -> relu(x @ w) @ w, whose products are shared out among threads, and of w."""
    folder = tmp_path_factory.mktemp("rows")
    weight = np.random.default_rng(1).standard_normal((16, 16), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(made)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    (folder / "model_library.so").write_bytes(build(made, Target.from_tag("host"), options).to_bytes())
    np.save(folder / "w.npy", weight)
    return [str(folder / "model_library.so"), str(folder / "w.npy")]


def run(code: str, model: list[str], threads: int, *, seconds: float = SECONDS) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", START + code,
         model[0], str(threads), model[1]],
        capture_output=True, text=True, check=False, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.every(2)
@pytest.mark.parametrize("threads", THREADS)
def test_memory_is_bounded_by_the_largest_input_however_many_sizes_there_are(model: list[str], threads: int) -> None:
    """Those of 60 sizes, each kept for its next run, would be 450 MiB or more; the largest input is 7 MiB."""
    code = """
engine = Engine(path, threads=threads)
assert right(engine, 1000)
before = mib()
for step in range(1, 61):
    assert engine(np.ones((2000 * step, 16), np.float32))[0].shape == (2000 * step, 16)
largest = status("VmHWM") / 1024
assert largest - before < 100, (before, largest)
"""
    run(code, model, threads)


@pytest.mark.every(2)
@pytest.mark.parametrize("threads", THREADS)
def test_an_engine_that_is_gone_gives_its_memory_back(model: list[str], threads: int) -> None:
    code = """
first = Engine(path, threads=threads)
assert right(first, 1000)
before = mib()
engine = Engine(path, threads=threads)
for count in (900_000, 750_000, 600_000):
    engine(np.ones((count, 16), np.float32))
    other = threading.Thread(target=engine, args=(np.ones((count, 16), np.float32),))
    other.start()
    other.join()
assert mib() - before > 50
del engine, other
gc.collect()
assert mib() - before < 150, (before, mib())
assert right(first, 1000)
"""
    run(code, model, threads)


@pytest.mark.every(2)
@pytest.mark.parametrize("threads", THREADS)
def test_500_calling_threads_leave_a_bounded_number_of_threads(model: list[str], threads: int) -> None:
    code = """
engine = Engine(path, threads=threads)
before = status("Threads")
wrong, called, go = [], threading.Semaphore(0), threading.Event()

def work(seed):
    if not right(engine, 3000, seed):
        wrong.append(seed)
    called.release()
    go.wait()

workers = [threading.Thread(target=work, args=(seed,)) for seed in range(500)]
for worker in workers:
    worker.start()
for _ in workers:
    called.acquire()
bound = 2 * os.cpu_count() + 1
assert status("Threads") - before - 500 <= bound, (before, status("Threads"))
go.set()
for worker in workers:
    worker.join()
assert wrong == []
until = time.monotonic() + 10
while status("Threads") - before > bound and time.monotonic() < until:
    time.sleep(0.1)  # a thread that was joined is counted until the system has buried it
assert status("Threads") - before <= bound, (before, status("Threads"))
print(time.time())
"""
    ended = float(run(code, model, threads))
    assert time.time() - ended < 30, "it ends as soon as it is done"


FORKS = """
engine = Engine(path, threads=threads)
assert right(engine, 3000)
time.sleep({pause})
for ending in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        good = right(engine, 3000, 5) and right(engine, 4000) and right(Engine(path, threads=threads), 2000)
        ending(3 if good else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert right(engine, 3000)
"""


@pytest.mark.every(3)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("pause", [0, 2], ids=["at once", "when all threads sleep"])
def test_a_process_that_forks_after_a_call_and_its_child_both_compute_and_end(
    model: list[str], threads: int, pause: int
) -> None:
    run(FORKS.format(pause=pause), model, threads)


@pytest.mark.every(2)
@pytest.mark.parametrize("threads", THREADS)
def test_a_process_may_fork_while_its_threads_compute(model: list[str], threads: int) -> None:
    code = """
engines = [Engine(path, threads=threads), Engine(path, threads=threads)]
done, wrong = threading.Event(), []

x = rows(3000)
expected = engines[0](x)[0]

def work(engine):
    while not done.is_set():
        if not np.array_equal(engine(x)[0], expected):
            wrong.append(engine)

workers = [threading.Thread(target=work, args=(engine,)) for engine in engines * 2]
for worker in workers:
    worker.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(3 if all(np.array_equal(engine(x)[0], expected) for engine in engines) else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
done.set()
for worker in workers:
    worker.join()
assert wrong == []
"""
    run(code, model, threads)


@pytest.mark.parametrize("threads", THREADS)
def test_forked_workers_of_multiprocessing_compute_with_the_engine_of_their_parent(
    model: list[str], threads: int
) -> None:
    code = """
engine = Engine(path, threads=threads)
assert right(engine, 3000)

def check(seed):
    return right(engine, 3000, seed)

with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map_async(check, range(12)).get(60) == [True] * 12
assert right(engine, 3000)
"""
    run(code, model, threads)


@pytest.mark.every(2)
@pytest.mark.parametrize("threads", THREADS)
def test_many_threads_share_two_engines_and_the_process_ends_while_some_still_call(
    model: list[str], threads: int
) -> None:
    code = """
engines = [Engine(path, threads=threads), Engine(path, threads=threads)]
wrong = []

def work(seed):
    for turn in range(25):
        if not right(engines[turn % 2], 2000 + seed % 3, seed):
            wrong.append(seed)

def forever(seed):
    while True:
        work(seed)

workers = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
for worker in workers:
    worker.start()
work(99)
for worker in workers:
    worker.join()
assert wrong == []
for seed in range(3):
    threading.Thread(target=forever, args=(seed,), daemon=True).start()
time.sleep(0.3)
"""
    run(code, model, threads)


@pytest.mark.long
@pytest.mark.parametrize("where", ["parent", "child"])
@pytest.mark.parametrize("threads", THREADS)
def test_interrupted_calls_leave_an_engine_that_computes(model: list[str], threads: int, where: str) -> None:
    code = """
engine = Engine(path, threads=threads)
assert right(engine, 3000)

def interrupted():
    x, caught = rows(3000), 0
    expected = engine(x)[0]
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            while True:
                assert np.array_equal(engine(x)[0], expected)
        except KeyboardInterrupt:
            caught += 1
    return caught > 5 and right(engine, 3000, 8) and right(engine, 3500)

signal.signal(signal.SIGALRM, signal.default_int_handler)
"""
    in_child = """
child = os.fork()
if child == 0:
    os._exit(3 if interrupted() else 4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    run(code + ("assert interrupted()" if where == "parent" else in_child), model, threads)


def test_an_error_in_a_call_of_another_thread_reaches_that_thread(model: list[str]) -> None:
    code = """
engine = Engine(path, threads=threads)
said = []

def work():
    try:
        engine(np.zeros((3, 5), np.float32))
    except ForgeError as error:
        said.append(str(error))
    assert right(engine, 3000)

worker = threading.Thread(target=work)
worker.start()
worker.join()
assert len(said) == 1 and said[0].startswith("input 'x': expected float32[n, 16], found shape [3, 5]"), said
"""
    run(code, model, THREADS[-1])


@pytest.mark.long
def test_a_hundred_forks_from_a_process_whose_threads_sleep_all_end(model: list[str]) -> None:
    code = """
engine = Engine(path, threads=threads)
for turn in range(100):
    assert right(engine, 3000)
    time.sleep(0.02 * (turn % 5))
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        sys.exit(3 if turn % 3 or right(engine, 3000, 5) else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    run(code, model, THREADS[-1], seconds=900)


@pytest.mark.long
def test_a_million_calls_and_ten_thousand_openings_leave_no_more_memory_and_give_the_same(model: list[str]) -> None:
    """By one thread, and by 8 with engines of their own: what came out first comes out to the end."""
    code = """
def calls(engine, count):
    x = rows(20, seed=3)
    first = engine(x)[0].tobytes()
    for _ in range(count):
        if engine(x)[0].tobytes() != first:
            wrong.append(1)
    return first

wrong = []
engines = [Engine(path, threads=threads) for _ in range(8)]
expected = calls(engines[0], 1000)
before = mib()
assert calls(engines[0], 1_000_000) == expected
workers = [threading.Thread(target=calls, args=(engine, 100_000)) for engine in engines]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
x = rows(20, seed=3)
for _ in range(10_000):
    if Engine(path, threads=1)(x)[0].tobytes() != expected:
        wrong.append(2)
assert not wrong
assert mib() - before < 16, (before, mib())
print(before, mib())
"""
    print(run(code, model, 1, seconds=1200))
