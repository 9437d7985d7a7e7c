"""The peaks of a roofline: what one core of this machine does at most, measured once and kept for machines of its kind.

A model's time has two bounds: its products at the highest rate that the core has for their type, and its bytes at the
rate that the core reads a block of that size with (Williams, Waterman and Patterson, Roofline: an insightful visual
performance model, CACM 52(4), 2009). The larger is the time of a program without any other cost; what share of a
measured time that is says how much there is left to gain.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from forge_pipeline import children
from forge_pipeline.digest import digest_json
from forge_pipeline.errors import CompileError
from forge_pipeline.evaluation.processor import cpu_name
from forge_pipeline.evaluation.work import Work
from forge_pipeline.target import HOST, Target

SOURCE: Final = Path(__file__).with_name("peaks.c")
SECONDS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Operations a second on one core, a product and a sum being two, and bytes a second read by the block's size."""

    float32: float
    int8: float
    reading: Mapping[str, float]

    def higher(self, other: Peaks) -> Peaks:
        """Return the higher of each."""
        reading = {size: max(rate, other.reading[size]) for size, rate in self.reading.items()}
        return Peaks(float32=max(self.float32, other.float32), int8=max(self.int8, other.int8), reading=reading)

    def bound_ms(self, work: Work) -> float:
        """Return the least time in milliseconds that ``work`` takes on one core.

        Its bytes at the rate of the largest block that is no larger: of a larger one, less may be in a cache.
        """
        computing = work.float_operations / self.float32 + work.byte_operations / self.int8
        sizes = sorted(int(size) for size in self.reading)
        block = max((size for size in sizes if size <= work.bytes), default=sizes[0])
        return 1e3 * max(computing, work.bytes / self.reading[str(block)])


def peaks(*, again: bool = False) -> Peaks:
    """Return those of this machine, measured in a second where they have not been. Raises CompileError.

    ``again``: they are measured once more, and the higher of each is kept: a machine that was busy showed less.
    """
    target = Target.from_tag(HOST)
    kind = digest_json([cpu_name(), target.vector_bits, target.dot_product, SOURCE.read_text("utf-8")])
    kept = _folder() / f"peaks-{kind[:32]}.json"
    known = _read(kept)
    if known is None or again:
        found = _measured(target, kept.with_suffix(""))
        known = found if known is None else found.higher(known)
        _keep(kept, json.dumps(asdict(known)).encode())
    return known


def bound_ms(work: Work, measured_ms: float) -> float:
    """Return the least time in milliseconds that ``work`` takes on one core of this machine. Raises CompileError.

    Where it was done in less, peaks are measured again: the machine was busy.
    """
    bound = peaks().bound_ms(work)
    return bound if bound <= measured_ms else peaks(again=True).bound_ms(work)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forge-pipeline"


def _read(path: Path) -> Peaks | None:
    try:
        return Peaks(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # not measured, or damaged
        return None


def _keep(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file for the next time; where that cannot be done, what is in it is found again then."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        Path(file.name).chmod(mode)
        Path(file.name).replace(path)
    except OSError:
        return


def _measured(target: Target, program: Path) -> Peaks:
    """Run the ``program`` that measures, compiled where it is not there."""
    with tempfile.TemporaryDirectory(prefix="forge-peaks-") as folder:
        if not program.exists():
            made = Path(folder) / "peaks"
            macros = [f"-DVECTOR_BITS={target.vector_bits}", f"-DDOT_{target.dot_product}", "-D_GNU_SOURCE"]
            words = ["-m", "ziglang", "cc", "-O2", "-std=c11", *macros, str(SOURCE), "-o", str(made)]
            _run([sys.executable, *words], folder)
            _keep(program, made.read_bytes(), 0o700)
            program = program if program.exists() else made
        return Peaks(**json.loads(_run([str(program)], folder)))


def _run(command: Sequence[str], folder: str) -> bytes:
    settings = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
    ended = children.run_apart(command, b"", seconds=SECONDS, folder=folder, settings=settings)
    if ended.status != 0:
        said = " ".join(ended.said.split())[-200:] or ended.how
        raise CompileError("peaks of this machine", "a program that measures them", said, "report this machine")
    return ended.answer
