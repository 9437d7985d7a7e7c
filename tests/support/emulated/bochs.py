"""What Bochs starts from: its configuration, a firmware that loads Linux, and a root file system in memory.

`tests/x86_emulated/setup.sh` makes Bochs, the firmware and Linux, in EMULATED.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from tests.support.emulated.machine import CACHE

EMULATED = Path(os.environ.get("FORGE_X86_EMULATED", CACHE / "x86-emulated"))
PROGRAM = EMULATED / "bochs"
ARGUMENTS = ("-q", "-f", "bochsrc")

MEMORY = 1536
"""MiB."""
SECTOR, CYLINDER, RUN = 512, 16 * 63 * 512, 256 * 512

PARAMETERS, KERNEL, INITRD = 0x800000, 0x1000000, 0x8000000
"""Where the firmware puts what it reads; the kernel unpacks itself at its address."""
SEGMENTS = 0x200
"""The firmware's table of them."""
COMMAND_LINE = (
    "console=ttyS0 quiet acpi=off noapic nokaslr mitigations=off disable_mtrr_trim random.trust_cpu=on "
    "clearcpuid=fsrm"  # Linux takes short moves as fast wherever this flag is, and moves wrongly where others are not
)

DEVICE, FOLDER, FILE, LINK = 0o020600, 0o040755, 0o100755, 0o120777
"""Kinds of entries of a root file system."""


def write_machine(folder: Path, cpu: str, root: Iterable[bytes], second_disk: str = "") -> None:
    """Write the files of a machine with a CPU of a model that Bochs knows: ``root`` are `entry`'s, one after another.

    ``second_disk`` is a line of Bochs's configuration, without the name of the disk.
    """
    disk = f"ata0-master: type=disk, mode=flat, heads=16, spt=63, path=system, cylinders={_write_system(folder, root)}"
    (folder / "bochsrc").write_text(f"""\
display_library: nogui
memory: guest={MEMORY}, host={MEMORY}
romimage: file=firmware, options=none
vgaromimage: file={EMULATED / "no-vga"}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
{disk}
{f"ata0-slave: type=disk, mode=flat, heads=16, spt=63, {second_disk}" if second_disk else ""}
cpu: model={cpu}, count=1, ips=40000000, reset_on_triple_fault=0
clock: sync=none
com1: enabled=1, mode=file, dev=serial
port_e9_hack: enabled=1, all_rings=1
log: log
panic: action=fatal
error: action=ignore
info: action=ignore
""")


def entry(name: str, mode: int, content: bytes = b"", numbers: tuple[int, int] = (0, 0)) -> bytes:
    """Return a file, folder, link or device as Linux unpacks it (cpio, "newc")."""

    def padded(part: bytes) -> bytes:
        return part + b"\0" * (-len(part) % 4)

    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *numbers, len(name.encode()) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return padded(header + name.encode() + b"\0") + padded(content)


def _write_system(folder: Path, root: Iterable[bytes]) -> int:
    """Write the first disk, and the firmware that loads it into memory; return the disk's cylinders.

    What Linux is handed is its boot protocol: Documentation/arch/x86/boot.rst, "32-bit Boot Protocol".
    """
    image = (EMULATED / "linux").read_bytes()
    initrd = b"".join([*root, entry("dev/console", DEVICE, numbers=(5, 1)), entry("TRAILER!!!", 0)])
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
