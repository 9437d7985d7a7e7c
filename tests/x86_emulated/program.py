#!/usr/bin/env python3
"""Run a program on an emulated x86 CPU, as an emulator of one's own does: program.py CPU PROGRAM [ARGUMENT...].

Bochs is started for it alone, with a Linux of which the program is the only one. Files that arguments name, alone or
behind a `=`, are there under the same path, and so are folders, whose files come back. Needs what `setup.sh` makes.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.emulated.bochs import ARGUMENTS, EMULATED, FILE, FOLDER, PROGRAM, entry, write_machine

MARK = b"\x01forge-job\x02"


def named(words: Sequence[str]) -> list[Path]:
    """Return the files and folders that arguments name."""
    paths = [Path(word.partition("=")[2] if "=" in word else word) for word in words]
    return list(dict.fromkeys(path.resolve() for path in paths if str(path) != "." and path.exists()))


def root(words: Sequence[str], paths: Sequence[Path]) -> Iterator[bytes]:
    """Yield a root file system with the files, and what is to be run."""
    yield entry("init", FILE, (EMULATED / "init").read_bytes())
    folders = {Path("/job"), Path("/dev"), Path("/proc")}
    for path in paths:
        folders |= {*path.parents, *([path] if path.is_dir() else [])} - {Path("/")}
    yield from (entry(str(folder)[1:], FOLDER) for folder in sorted(folders))
    yield from (entry(str(path)[1:], FILE, path.read_bytes()) for path in paths if path.is_file())
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    back = [str(path) for path in paths if path.is_dir()]
    for name, content in (("arguments", listed(words)), ("stdin", given), ("folders", listed(back))):
        yield entry(f"job/{name}", FILE, content)


def listed(words: Sequence[str]) -> bytes:
    """Return words, each ended by a zero."""
    return b"".join(word.encode() + b"\0" for word in words)


def answered(answer: bytes) -> tuple[int, dict[str, bytes]] | None:
    """Return how the program ended, and the files that came back; None before all of it is there."""
    at = answer.find(MARK) + len(MARK)
    if at < len(MARK) or len(answer) < at + 4:
        return None
    (status,), at, files = struct.unpack_from("<i", answer, at), at + 4, {}
    while (end := answer.find(b"\0", at)) >= 0:
        if end == at:
            return os.waitstatus_to_exitcode(status), files
        if len(answer) < end + 9:
            return None
        name, (size,), at = answer[at:end].decode(), struct.unpack_from("<Q", answer, end + 1), end + 9
        if len(answer) < at + size:
            return None
        files[name], at = answer[at : at + size], at + size
    return None


def main() -> int:
    """Run it; return its exit status, 128 more than a signal's number."""
    cpu, *words = sys.argv[1:]
    paths = named(words)
    with tempfile.TemporaryDirectory(prefix="forge-emulated-") as name:
        folder = Path(name)
        write_machine(folder, cpu, root(words, paths))
        with (folder / "messages").open("wb") as messages:
            machine = subprocess.Popen(
                [PROGRAM, *ARGUMENTS], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages
            )
        assert machine.stdout is not None
        answer, found = b"", None
        try:
            while found is None and (more := os.read(machine.stdout.fileno(), 1 << 20)):
                answer += more
                found = answered(answer)
        finally:
            machine.kill()
            machine.wait()
        if found is None:
            print((folder / "serial").read_text("utf-8", "replace")[-2000:], file=sys.stderr)
            return 125
    status, files = found
    sys.stdout.buffer.write(files.pop("/job/stdout", b""))
    sys.stderr.buffer.write(files.pop("/job/stderr", b""))
    for file, content in files.items():
        Path(file).write_bytes(content)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
