"""What a board's CPU is: the machine that targets are matched with."""

from __future__ import annotations

import tempfile
from pathlib import Path

from forge_pipeline.runners.device import Device
from forge_pipeline.runners.ssh import connected, unusable
from forge_pipeline.target.host import ARCHITECTURES, Machine, parse_cpuinfo


def machine_of(device: Device) -> Machine:
    """Ask a board, when it is its turn. Raises LostError where it does not answer, DeviceError where it refuses."""
    with connected(device) as board, tempfile.TemporaryDirectory(prefix="forge-inquiry-") as name:
        nothing, answer = Path(name) / "nothing", Path(name) / "cpuinfo"
        nothing.touch()
        done = board.run("cat /proc/cpuinfo", nothing, answer)
        if done.status != 0:
            raise unusable(device, done.said)
        text = answer.read_text("utf-8", "replace")
        arch = ARCHITECTURES.get(board.about["arch"], board.about["arch"])
    ids, flags = parse_cpuinfo(text)
    cores = sum(line.partition(":")[0].strip() == "processor" for line in text.splitlines())
    return Machine(arch=arch, system="linux", ids=ids, flags=flags, cores=max(1, cores))
