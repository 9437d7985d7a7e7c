"""Libraries whose tables were changed and whose digest was mended, and what must become of them."""

from __future__ import annotations

import random
import resource
import signal
import struct
from collections.abc import Sequence
from pathlib import Path

from forge_pipeline.runtime.bundle import Library
from tests.support.native import Runner, mended

SECONDS = 2
SIZES = {"n": 2, "m": 2, "s": 3}


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ends_well(runner: Runner, path: Path, what: object, files: Sequence[Path] = ()) -> bool:
    """Return whether it ran; fail where it ended by a signal, other than that of the limit on ``files`` of a loop."""
    done = runner.start(path, *files, *sizes(path), preexec_fn=limit)
    if done.returncode == 2 and done.stderr.startswith("error: --size: "):  # a changed table has other names
        done = runner.start(path, *files, preexec_fn=limit)
    if files and done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return True
    assert done.returncode in (0, 1), (what, done.returncode, done.stderr)
    assert (done.returncode == 1) == done.stderr.startswith("error: ")
    return done.returncode == 0


def sizes(path: Path) -> list[str]:
    """Return options with a size for each open extent that the metadata name, which no test here changes."""
    inputs = Library.from_bytes(path.read_bytes()).metadata["inputs"]
    names = dict.fromkeys(size for row in inputs for size in row["shape"] if isinstance(size, str))
    return [word for name in names if name in SIZES for word in ("--size", f"{name}={SIZES[name]}")]


def word(choice: random.Random, old: int, words: list[int]) -> int:
    """Return another word: near the old one, another of the table, a power of two, or anything."""
    return choice.choice(
        [
            old + choice.choice((-64, -4, -1, 1, 4, 64)),
            choice.choice(words),
            1 << choice.randrange(64),
            -old,
            choice.getrandbits(64),
        ]
    )


def mutate(library: Library, data: bytes, choice: random.Random) -> bytes:
    """Change one to three words of the program."""
    program = bytes(library.program)
    start = data.index(program)
    (count,) = struct.unpack_from("<q", program, 24)
    words = list(struct.unpack_from(f"<{count}q", program, 64))
    changed = bytearray(data)
    for _ in range(choice.randint(1, 3)):
        # half of the changes in the code, at the end
        at = choice.randrange(count) if choice.random() < 0.5 else choice.randrange(count // 2, count)
        value = word(choice, words[at], words)
        struct.pack_into("<Q", changed, start + 64 + 8 * at, value & (1 << 64) - 1)
    return mended(bytes(changed))
