"""Decoders with weights in blocks of four and eight bits, beside llama.cpp with the very same weights.

For an environment with `pip install llama-cpp-python==0.3.36 gguf` (`benchmarks.llama_cpp`); without it, ours alone:

    python -m benchmarks.llama --folder FOLDER --json llama.json
    python -m benchmarks.llama --folder FOLDER --decoders llama_0.1b --bits 4 --threads 1 --cpu-time   # at load

A row is one newest token behind 128 others, or a prompt of 128, of which both compute the scores of the last. Ours is
one library with code for both (`compile.state=auto`: caches stay where they are), weights as MatMulNBits of accuracy
level 4. llama.cpp has Q4_0 and Q8_0, its best form: compiled for this CPU, weights packed anew, llamafile's products.
They take turns, each in a process of its own; least milliseconds. ``bandwidth`` is the memory that a token's weights
take in GGUF, by the time of a token, as part of what a plain loop of vectors reads in a second with as many threads.
With ``--cpu-time`` it is the time that the process computed, on one thread, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import llama_cpp
from benchmarks.llama_models import DECODERS, bytes_read, to_onnx, write_gguf
from benchmarks.turns import Contestant, compare

TOKENS = 128
"""Of a prompt, and before a newest token."""
READ = 256 << 20
"""Bytes that are read to measure the bandwidth, more than caches hold."""
PIECE = 8 << 20
"""Bytes of one measurement of it."""
LLAMA = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Least milliseconds by runtime, tokens a second, shares of the bandwidth, and the difference of the scores."""

    decoder: str
    bits: int
    threads: int
    kind: str
    least: dict[str, float]
    tokens_per_second: dict[str, float]
    bandwidth: dict[str, float]
    difference: float | None


def bandwidth(threads: int, pieces: int = 400) -> float:
    """Return bytes a second that ``threads`` threads read together, in the quickest of many turns.

    Each reads a piece of its own part of memory, in huge pages. Raises RuntimeError where there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler: bandwidth is not measured")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bandwidth.so"
        source = Path(__file__).with_name("bandwidth.c")
        subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", source, "-o", path], check=True)
        read = ctypes.CDLL(str(path)).read_all
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    memory = mmap.mmap(-1, READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    numbers = np.frombuffer(memory, np.uint8)
    numbers[:] = 1
    share, start = READ // threads, numbers.ctypes.data

    together = threading.Barrier(threads)

    def part(thread: int) -> list[tuple[float, float]]:
        times = []
        for piece in range(pieces):
            together.wait()
            begun = time.perf_counter()
            read(start + thread * share + piece * PIECE % (share - PIECE), PIECE)
            times.append((begun, time.perf_counter()))
        return times

    with ThreadPoolExecutor(threads) as pool:
        turns = zip(*pool.map(part, range(threads)), strict=True)
    quickest: float = min(max(end for _, end in turn) - min(begun for begun, _ in turn) for turn in turns)
    return float(threads * PIECE / quickest)


def prepare(name: str, bits: int, folder: Path, target: str) -> dict[str, Path]:
    """Write the library and the file of llama.cpp unless they are there; return them by runtime."""
    from benchmarks.latency import folded
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    decoder, stem = DECODERS[name], f"{name}_q{bits}"
    model, library, theirs = (folder / f"{stem}{suffix}" for suffix in (".onnx", ".so", ".gguf"))
    if not library.exists():
        onnx.save(to_onnx(decoder, bits), model)
        options = Options(
            generator="auto", opt_level=3, float16=False, channel_layout=None,
            dims={"s": (1, TOKENS)}, open_form=False, state="auto", state_max=llama_cpp.CONTEXT,
        )  # fmt: skip
        library.write_bytes(build(folded(model).mod, Target.from_tag(target), options).to_bytes())
    if llama_cpp.why_not():
        return {"ours": library}
    if not theirs.exists():
        write_gguf(theirs, decoder, bits)
    return {"ours": library, LLAMA: theirs}


def by_wall(files: dict[str, Path], given: dict[str, np.ndarray], threads: int, runs: int) -> tuple[Any, Any]:
    """Return least milliseconds and scores by runtime, in processes that take turns."""
    names = {"ours": "decoder", LLAMA: LLAMA}
    contestants = {name: Contestant(runtime=names[name], model=path) for name, path in files.items()}
    found = compare(contestants, given, threads=threads, runs=runs)
    if found.failed:
        raise RuntimeError(str(found.failed))
    return found.least(), found.outputs


def by_cpu(files: dict[str, Path], given: dict[str, np.ndarray], runs: int) -> tuple[Any, Any]:
    """Return the least milliseconds that one thread computed, in this process, and scores by runtime."""
    starts = {"ours": llama_cpp.ours, LLAMA: llama_cpp.llama_cpp}
    calls = {name: starts[name](path, 1, given) for name, path in files.items()}
    scores, least = {name: np.array(call()) for name, call in calls.items()}, dict.fromkeys(calls, float("inf"))
    for _ in range(runs):
        for name, call in calls.items():
            for _ in range(2):
                begun = time.process_time()
                call()
                least[name] = min(least[name], 1e3 * (time.process_time() - begun))
    return least, scores


def measure(name: str, bits: int, threads: int, chosen: argparse.Namespace, peak: float) -> list[Row]:
    """Return the rows of a token and of a prompt; ``peak``: bytes a second that memory gives."""
    files, rows = prepare(name, bits, chosen.folder, chosen.target), []
    ids = np.random.default_rng(0).integers(0, DECODERS[name].vocabulary, (1, TOKENS + 1))
    for kind, before in (("token", TOKENS), ("prompt", 0)):
        count = 1 if before else TOKENS
        given = {"past": ids[:, :before], "tokens": ids[:, before : before + count]}
        runs = chosen.runs if before else max(5, chosen.runs // 10)
        least, scores = by_cpu(files, given, runs) if chosen.cpu_time else by_wall(files, given, threads, runs)
        difference = None
        if LLAMA in scores:
            difference = float(np.abs(scores["ours"] - scores[LLAMA]).max() / np.abs(scores[LLAMA]).max())
        size = bytes_read(DECODERS[name], bits)
        row = Row(
            decoder=name, bits=bits, threads=threads, kind=kind, least=least,
            tokens_per_second={runtime: 1e3 * count / value for runtime, value in least.items()},
            bandwidth={runtime: size / value * 1e3 / peak for runtime, value in least.items()} if before else {},
            difference=difference,
        )  # fmt: skip
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _line(row: Row) -> str:
    def cells(values: dict[str, float], form: str) -> str:
        return " | ".join(format(values[name], form) if name in values else "-" for name in ("ours", LLAMA))

    ratio = f"{row.least['ours'] / row.least[LLAMA]:.2f}" if LLAMA in row.least else "-"
    difference = "-" if row.difference is None else f"{row.difference:.1e}"
    numbers = f"{cells(row.least, '.2f')} | {ratio} | {cells(row.tokens_per_second, '.0f')}"
    return (
        f"| {row.decoder} | {row.bits} | {row.threads} | {row.kind} | {numbers} | {cells(row.bandwidth, '.0%')} "
        f"| {difference} |"
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where models are written, and found again")
    parser.add_argument("--decoders", nargs="+", default=list(DECODERS), choices=list(DECODERS))
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 8], choices=[4, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=200, help="tokens; prompts are a tenth as many")
    parser.add_argument("--cpu-time", action="store_true", help="what the process computed, on one thread")
    parser.add_argument("--target", default="host")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.cpu_time and chosen.threads != [1]:
        parser.error("--cpu-time measures one thread: give --threads 1")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    missing = llama_cpp.why_not()
    if missing:
        print(f"llama.cpp is left out ({missing}): pip install llama-cpp-python==0.3.36 gguf", file=sys.stderr)
    peaks = {threads: bandwidth(threads) for threads in chosen.threads}
    print("memory reads, GB/s:", ", ".join(f"{value / 1e9:.1f} ({count})" for count, value in peaks.items()))
    print("| decoder | bits | threads | what | ours, ms | llama.cpp, ms | ratio | ours, tokens/s | llama.cpp, tokens/s "
          "| ours, of bandwidth | llama.cpp, of bandwidth | difference |")  # fmt: skip
    print("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows = [
        row
        for name in chosen.decoders
        for bits in chosen.bits
        for threads in chosen.threads
        for row in measure(name, bits, threads, chosen, peaks[threads])
    ]
    if chosen.json:
        report = {"bandwidth": peaks, "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
