"""An emulated x86: started once, it runs libraries that are handed to it, with the Engine of this source tree.

Bochs interprets about 50 million instructions a second. Its first disk holds Linux and a root file system that
`setup.sh` made, its second one the job; it answers over a port whose bytes Bochs writes to its standard output. An
idle guest would keep a core busy, so its process is stopped between two jobs.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.emulated.machine import CACHE, Machine, Result
from tests.support.native import built
from tests.support.paths import ROOT, SUPPORT

EMULATED = Path(os.environ.get("FORGE_X86_EMULATED", CACHE / "x86-emulated"))

MEMORY = 1536
"""MiB."""
BOOT_SECONDS = 900
JOBS = SUPPORT / "emulated/jobs.py"
SECTOR, CYLINDER, RUN = 512, 16 * 63 * 512, 256 * 512
MAILBOX_CYLINDERS = 512
HEADER = struct.Struct("<QQ")

PARAMETERS, KERNEL, INITRD = 0x800000, 0x1000000, 0x8000000
"""Where the firmware puts what it reads; the kernel unpacks itself at its address."""
SEGMENTS = 0x200
"""The firmware's table of them."""
COMMAND_LINE = (
    "console=ttyS0 quiet acpi=off noapic nokaslr mitigations=off disable_mtrr_trim random.trust_cpu=on "
    "clearcpuid=fsrm"  # Linux takes short moves as fast wherever this flag is, and moves wrongly where others are not
)


class Emulator(Machine):
    """A running machine with one CPU of a model that Bochs knows."""

    def __init__(self, cpu: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forge-emulated-")
        folder = Path(self._folder.name)
        self._mailbox, self._jobs = folder / "mailbox", 0
        with self._mailbox.open("wb") as file:
            file.truncate(MAILBOX_CYLINDERS * CYLINDER)
        cylinders = _write_system(folder)
        (folder / "bochsrc").write_text(_configuration(cpu, cylinders))
        with (folder / "messages").open("wb") as messages:
            process = subprocess.Popen(
                [EMULATED / "bochs", "-q", "-f", "bochsrc"],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages,
            )  # fmt: skip
        super().__init__(process, BOOT_SECONDS)
        process.send_signal(signal.SIGSTOP)

    def run(self, library: bytes, *runs: tuple[tuple[Any, ...], dict[str, Any]]) -> Result:
        """Call an engine of ``library`` with the arguments of each run."""
        try:
            return super().run(library, *runs)
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the machine."""
        super().close()
        self._folder.cleanup()

    def _submit(self, job: bytes) -> None:
        with self._mailbox.open("r+b") as file:
            file.seek(SECTOR)
            file.write(job)
            file.flush()
            self._jobs += 1
            file.seek(0)
            file.write(HEADER.pack(self._jobs, len(job)))
        self._process.send_signal(signal.SIGCONT)

    def _last_words(self) -> str:
        serial = Path(self._folder.name) / "serial"
        return serial.read_text("utf-8", "replace") if serial.exists() else "(nothing)"


def _configuration(cpu: str, cylinders: int) -> str:
    disk = "type=disk, mode=flat, heads=16, spt=63"
    return f"""\
display_library: nogui
memory: guest={MEMORY}, host={MEMORY}
romimage: file=firmware, options=none
vgaromimage: file={EMULATED / "no-vga"}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: {disk}, path=system, cylinders={cylinders}
ata0-slave: {disk}, path=mailbox, cylinders={MAILBOX_CYLINDERS}
cpu: model={cpu}, count=1, ips=40000000, reset_on_triple_fault=0
clock: sync=none
com1: enabled=1, mode=file, dev=serial
port_e9_hack: enabled=1, all_rings=1
log: log
panic: action=fatal
error: action=ignore
info: action=ignore
"""


def _write_system(folder: Path) -> int:
    """Write the first disk, and the firmware that loads it into memory; return the disk's cylinders.

    What Linux is handed is its boot protocol: Documentation/arch/x86/boot.rst, "32-bit Boot Protocol".
    """
    image = (EMULATED / "linux").read_bytes()
    initrd = b"".join(_archive())
    setup_end, header_end = 512 * (1 + (image[0x1F1] or 4)), 0x202 + image[0x201]
    zero_page = bytearray(4096)
    zero_page[0x1F1:header_end] = image[0x1F1:header_end]
    zero_page[0x210] = 0xFF  # a loader without a number of its own
    struct.pack_into("<III", zero_page, 0x214, KERNEL, INITRD, len(initrd))
    struct.pack_into("<I", zero_page, 0x228, PARAMETERS + len(zero_page))
    usable = [(0, 0x9F000), (0x100000, (MEMORY << 20) - 0x100000)]
    zero_page[0x1E8] = len(usable)
    for row, (start, size) in enumerate(usable):
        struct.pack_into("<QQI", zero_page, 0x2D0 + 20 * row, start, size, 1)
    parts = {
        PARAMETERS: bytes(zero_page) + COMMAND_LINE.encode() + b"\0",
        KERNEL: image[setup_end:],
        INITRD: initrd,
    }
    table, sector = [], 0
    with (folder / "system").open("wb") as disk:
        for address, content in parts.items():
            runs = -(-len(content) // RUN)
            table += [sector, address, runs]
            disk.write(content.ljust(runs * RUN, b"\0"))
            sector += runs * RUN // SECTOR
        cylinders = -(-sector * SECTOR // CYLINDER)
        disk.truncate(cylinders * CYLINDER)
    firmware = bytearray((EMULATED / "firmware").read_bytes())
    struct.pack_into(f"<{len(table) + 3}I", firmware, SEGMENTS, *table, PARAMETERS, KERNEL, 0)
    (folder / "firmware").write_bytes(firmware)
    return cylinders


def _archive() -> Iterator[bytes]:
    """Yield a root file system as Linux unpacks it (cpio, "newc"): what setup.sh made, and this source tree."""
    root, device, folder, file, link = EMULATED / "root", 0o020600, 0o040755, 0o100755, 0o120777
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            yield _entry(name, link, str(path.readlink()).encode())
        else:
            yield _entry(name, folder, b"") if path.is_dir() else _entry(name, file, path.read_bytes())
    yield _entry("source", folder, b"")
    package = ROOT / "forge_runtime"
    yield _entry("source/forge_runtime/libforge.so", file, (built("x86_64") / "libforge.so").read_bytes())
    for path in [package, *sorted(package.rglob("*")), SUPPORT.parent, SUPPORT, JOBS.parent, JOBS]:
        name = f"source/{path.relative_to(ROOT)}"
        if path.is_dir():
            yield _entry(name, folder, b"")
        elif path.suffix == ".py":
            yield _entry(name, file, path.read_bytes())
    yield _entry("init", file, (SUPPORT / "emulated/x86_jobs.py").read_bytes())
    yield _entry("dev/console", device, b"", numbers=(5, 1))
    yield _entry("TRAILER!!!", 0, b"")


def _entry(name: str, mode: int, content: bytes, numbers: tuple[int, int] = (0, 0)) -> bytes:
    def padded(part: bytes) -> bytes:
        return part + b"\0" * (-len(part) % 4)

    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *numbers, len(name.encode()) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return padded(header + name.encode() + b"\0") + padded(content)
