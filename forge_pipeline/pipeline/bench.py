"""`forge-pipeline bench`: how fast libraries are, in turn, each in processes of its own, here or on a board."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final

from forge_pipeline.content import OpenFile
from forge_pipeline.crypto import keyfile
from forge_pipeline.crypto.envelope import MAGIC, is_encrypted, read_header
from forge_pipeline.crypto.keys import read_password
from forge_pipeline.errors import ArtifactError, ConfigError, did_you_mean
from forge_pipeline.pipeline.bench_calls import timed_calls
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.listener import timing
from forge_pipeline.runners.board import Board
from forge_pipeline.runners.contract import Job, Place, Seal
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.here import Here
from forge_pipeline.runtime.bundle import FOOTER, Library, has_variants, metadata_of_variants
from forge_pipeline.stages.artifacts import KEY
from forge_runtime.engine import available_cores
from forge_runtime.secret import Secret
from forge_runtime.text import shown

Row = Mapping[str, Any]
Turn = Callable[..., Row]
"""One turn, with so many threads: forge-run's words for what is measured, and for its options."""

NOTHING: Final[Mapping[str, Path]] = {}
COLUMNS: Final = ("least_ms", "p50_ms", "p90_ms", "p99_ms", "a_second", "first_ms", "open_ms", "peak_kib")
WARM_UP: Final = 5
ROW, NAME, BAR = 24, 300, 420
STYLE: Final = "text{font:12px monospace}.bar{fill:#9db8d6}.median{fill:#c33}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is asked for, by the options of the command."""

    device: str | None
    config_dir: Path | None
    against: Path | None
    runs: int
    rounds: int
    threads: int | None
    size: tuple[str, ...]
    profile: bool
    as_json: bool
    svg: Path | None
    password: tuple[str, ...] = ()
    prompt: int | None = None


def bench(artifacts: Sequence[Path], asked: Bench) -> str:
    """Return a table, or JSON, with a row for each of ``artifacts``. Raises ForgeError.

    Of all rounds: the least time, the median of the rounds' medians and of their 90th and 99th percentiles, on one
    thread; ``a_second`` is by the median on all threads; opening, the first run and the memory are the least of them.
    Of a library that keeps states, a prompt and a token behind it have rows of their own, and ``a_second`` is tokens.
    """
    if asked.against is not None and asked.device is not None:
        raise ConfigError("--against", "no --device: ONNX Runtime runs here", asked.device, "leave one of them out")
    threads = asked.threads or available_cores()
    sizes = _sizes(asked)
    with tempfile.TemporaryDirectory(prefix="forge-bench-") as folder:
        entrants: dict[str, Turn] = {}
        tokens: dict[str, int] = {}
        opened = {path: _opened(path, asked) for path in artifacts}
        _check_sizes(sizes, opened, asked)
        for path, (seal, triple, metadata) in opened.items():
            place = _place(asked, triple)
            if not metadata.get("states"):
                taken = _open_sizes(metadata["inputs"]) if metadata else set(sizes)
                words = tuple(word for name in sizes if name in taken for word in ("--size", f"{name}={sizes[name]}"))
                entrants[str(path)] = _forge_run(place, path, seal, Path(folder), asked, options=words)
                continue
            inner = Path(tempfile.mkdtemp(dir=folder))
            for timed in timed_calls(metadata, inner, sizes, asked.prompt):
                tokens[f"{path}: {timed.name}"] = timed.tokens
                entrants[f"{path}: {timed.name}"] = _forge_run(place, path, seal, inner, asked, timed.files)
        theirs = f"{asked.against} (ONNX Runtime)"
        if asked.against is not None:
            entrants[theirs] = _onnx_runtime(asked.against, asked)
        turns: dict[str, list[tuple[Row, Row]]] = {name: [] for name in entrants}
        with timing() if asked.device is None else nullcontext():
            for _ in range(asked.rounds):
                for name, turn in entrants.items():
                    turns[name].append((turn(1), turn(threads)))
            rows = {name: _row(found, tokens.get(name, 1)) for name, found in turns.items()}
            if asked.profile:
                for name in entrants:
                    if name != theirs:
                        rows[name]["kernels"] = entrants[name](1, "--profile")["kernels"]
    if asked.svg is not None:
        write_atomically(asked.svg, _svg(rows))
    if asked.as_json:
        return json.dumps({"threads": threads, "runs": asked.runs, "rounds": asked.rounds, "rows": rows}, indent=1)
    return _table(rows, threads)


def _opened(path: Path, asked: Bench) -> tuple[Seal | None, str, Mapping[str, Any]]:
    """Return what opens a library, None for one in clear; its triple, which a seal leaves readable; and its metadata,
    of which a seal leaves nothing."""
    try:
        with path.open("rb") as file:
            if not is_encrypted(file.read(len(MAGIC))):
                file.seek(max(0, file.seek(0, os.SEEK_END) - FOOTER))
                is_for_several = has_variants(file.read())
                metadata = _of_variant(path) if is_for_several else Library.from_file(path).metadata
                return None, str(metadata["target"]["triple"]), metadata
            seal = Seal(key=path.with_name(KEY), password=_password(path, asked))
            wrapped, size = seal.key.read_bytes(), file.seek(0, os.SEEK_END)
            file.seek(0)
            unlock = partial(keyfile.unwrap, wrapped, seal.password)
            header, _ = read_header(file, size, lambda pair: unlock(pair=pair), where=str(path))
    except OSError as error:
        found = f"{error.strerror or type(error).__name__}: {error.filename}"
        raise ArtifactError(str(path), "a library, and its key beside it", found, "give a model_library.so") from error
    return seal, str(json.loads(header.meta)["target"]["triple"]), {}


def _of_variant(path: Path) -> Mapping[str, Any]:
    """Return the metadata of one variant of a library for several CPUs: all have one model, and one interface."""
    return metadata_of_variants(OpenFile.of(path), str(path))[-1]


def _password(path: Path, asked: Bench) -> Secret:
    if not asked.password:
        fix = "give --password file:PATH or env:NAME"
        raise ConfigError(str(path), "--password with an encrypted model", "none", fix)
    return read_password(asked.password)


def _place(asked: Bench, triple: str) -> Place:
    if asked.device is None:
        return Here()
    device = Device.of(compose([f"device={asked.device}"], asked.config_dir)["device"])
    if device is None:
        raise ConfigError("--device", "a board of conf/device", asked.device, "name one, or leave the option out")
    return Board(device=device, triple=triple)


def _forge_run(
    place: Place,
    path: Path,
    seal: Seal | None,
    folder: Path,
    asked: Bench,
    files: Mapping[str, Path] = NOTHING,
    options: tuple[str, ...] = (),
) -> Turn:
    job = Job(
        library=path,
        inputs=files,
        outputs=0,
        folder=folder,
        runs=asked.runs,
        options=options,
        seal=seal,
        where=str(path),
    )

    def turn(threads: int, *extra: str) -> Row:
        return place.run(replace(job, options=("--threads", str(threads), *options, *extra)))

    return turn


def _sizes(asked: Bench) -> dict[str, int]:
    """Return the sizes that are asked for, by name. Raises ConfigError for a word that is none."""
    sizes: dict[str, int] = {}
    for word in asked.size:
        name, _, size = word.partition("=")
        if not name or not size.isdecimal() or int(size) < 1 or sizes.setdefault(name, int(size)) != int(size):
            fix = "give the name of an open size, and a whole number, once"
            raise ConfigError("--size", "NAME=N", f"--size {word}", fix)
    return sizes


def _open_sizes(inputs: Iterable[Mapping[str, Any]]) -> set[str]:
    return {size for row in inputs for size in row["shape"] if isinstance(size, str)}


def _check_sizes(
    sizes: Mapping[str, int], opened: Mapping[Path, tuple[Seal | None, str, Mapping[str, Any]]], asked: Bench
) -> None:
    """Raise ConfigError for a size that no library and no model has; what an encrypted one has forge-run says."""
    if not sizes or any(not metadata for _, _, metadata in opened.values()):
        return
    known = {name for _, _, metadata in opened.values() for name in _open_sizes(metadata["inputs"])}
    if asked.against is not None:
        from forge_pipeline.ir import ONNXModule

        known |= _open_sizes(ONNXModule.from_file(asked.against).describe_inputs())
    for name in sizes:
        if name not in known:
            expected = f"an open size: {', '.join(sorted(known))}" if known else "a library with open sizes"
            raise ConfigError("--size", expected, name, f"{did_you_mean(name, known)}give such a size, or leave it out")


def _onnx_runtime(path: Path, asked: Bench) -> Turn:
    import numpy as np
    import onnxruntime

    from forge_pipeline.data import Preparation
    from forge_pipeline.evaluation.feeds import feeds_for
    from forge_pipeline.ir import ONNXModule

    preparation = Preparation(calibration_samples=1, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)
    chosen = feeds_for(ONNXModule.from_file(path), None, preparation, _sizes(asked))
    if chosen.missing is not None:
        raise ArtifactError(str(path), "a model that runs with made-up inputs", chosen.missing, "give --size NAME=N")
    feed = next(iter(chosen.feeds))

    def turn(threads: int, *extra: str) -> Row:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        start = time.perf_counter_ns()
        session = onnxruntime.InferenceSession(str(path), options)
        opened = time.perf_counter_ns()
        session.run(None, feed)
        first = time.perf_counter_ns()
        for _ in range(WARM_UP):
            session.run(None, feed)
        times = []
        for _ in range(asked.runs):
            before = time.perf_counter_ns()
            session.run(None, feed)
            times.append((time.perf_counter_ns() - before) / 1e6)
        levels = {f"p{level}_ms": float(np.percentile(times, level)) for level in (50, 90, 99)}
        starts = {"open_ms": (opened - start) / 1e6, "first_ms": (first - opened) / 1e6}
        return {"least_ms": min(times), **levels, **starts}

    return turn


def _row(turns: Sequence[tuple[Row, Row]], tokens: int) -> dict[str, Any]:
    one = [first for first, _ in turns]
    row: dict[str, Any] = {"least_ms": min(turn["least_ms"] for turn in one)}
    row |= {name: statistics.median(turn[name] for turn in one) for name in ("p50_ms", "p90_ms", "p99_ms")}
    row["a_second"] = round(1000 * tokens / max(1e-6, statistics.median(turn["p50_ms"] for _, turn in turns)), 1)
    row |= {name: min(turn[name] for turn in one) for name in ("first_ms", "open_ms", "peak_kib") if name in one[0]}
    return row


def _table(rows: Mapping[str, Row], threads: int) -> str:
    table = [["", *(name.replace("_", " ") for name in COLUMNS)]]
    table += [
        [name, *(f"{row[column]:.4g}" if column in row else "-" for column in COLUMNS)] for name, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    lines.append(f"times on 1 thread, a second on {threads}")
    for name, row in rows.items():
        kernels = row.get("kernels", ())
        total = sum(kernel["milliseconds"] for kernel in kernels) or 1.0
        lines += [f"{name}:"] if kernels else []
        lines += [f"{kernel['milliseconds'] / total:7.1%}  {kernel['name']}" for kernel in kernels]
    return "\n".join(map(shown, lines))


def _svg(rows: Mapping[str, Row]) -> bytes:
    """Draw a bar from the least time to the 99th percentile of each row, and a line at the median."""
    most = max(row["p99_ms"] for row in rows.values()) or 1.0
    width, height = NAME + BAR + 120, ROW * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="{NAME}" y="16">milliseconds: least, median, 99 of 100</text>'
    ]
    for place, (name, row) in enumerate(rows.items(), start=1):
        least, median, top = (NAME + BAR * row[word] / most for word in ("least_ms", "p50_ms", "p99_ms"))
        y = place * ROW
        label = shown(name)[-40:]
        parts.append(
            f'<text x="8" y="{y + 16}">{escape(label)}</text>'
            f'<rect class="bar" x="{least:.1f}" y="{y + 5}" width="{max(1.0, top - least):.1f}" height="{ROW - 10}"/>'
            f'<rect class="median" x="{median:.1f}" y="{y + 2}" width="2" height="{ROW - 4}"/>'
            f'<text x="{top + 8:.1f}" y="{y + 16}">{row["p50_ms"]:.4g}</text>'
        )
    return "".join([*parts, "</svg>\n"]).encode()
