"""A board as a place that runs artifacts: what it is, what it lacks, the run, and what comes back."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forge_pipeline.digest import digest_file
from forge_pipeline.errors import DeviceError, MachineError
from forge_pipeline.runners.contract import Facts, Job, refusal
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.ssh import Connection, LostError, connected, unusable
from forge_pipeline.runtime.native import native_runner
from forge_pipeline.target.host import ARCHITECTURES

PAUSE: Final = 1.0
"""Seconds before a connection is tried again, doubled each time."""

ABOUT: Final = """
echo arch=$(uname -m)
echo kernel=$(uname -r)
echo cpu=$(sed -n 's/^model name[^:]*: *//p;s/^Model[^:]*: *//p;s/^uarch[^:]*: *//p' /proc/cpuinfo | head -n 1)
"""
STATE: Final = """
echo governor=$(cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null | sort -u | tr '\\n' ' ')
echo khz=$(cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq 2>/dev/null | sort -n | tail -n 1)
echo millicelsius=$(cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null | sort -n | tail -n 1)
echo throttled=$(vcgencmd get_throttled 2>/dev/null | sed 's/.*=//')
"""
"""What Linux says of the clock and the heat, and a Raspberry Pi of throttling; nothing where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """``device``, for code of the ``triple``."""

    device: Device
    triple: str
    measures_time = True

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    def run(self, job: Job) -> Facts:
        """Run ``job``, again where the connection breaks. Raises MachineError, DeviceError, ArtifactError."""
        for attempt in range(self.device.retries + 1):
            try:
                with connected(self.device) as connection:
                    return self._run(connection, job)
            except LostError:
                if attempt == self.device.retries:
                    raise
                time.sleep(PAUSE * 2**attempt)
        raise AssertionError  # a loop of at least one turn

    def _run(self, connection: Connection, job: Job) -> Facts:
        about = _facts(connection, ABOUT)
        arch = ARCHITECTURES.get(about.get("arch", ""), about.get("arch", "unknown"))
        wanted = self.triple.partition("-")[0]
        if arch != ARCHITECTURES.get(wanted):
            fix = "choose a target of its architecture, or another device"
            raise MachineError(f"device {self.name}", f"a board of {wanted}", f"one of {arch}", fix)
        program = _runner(connection, native_runner(arch))
        work = connection.work
        for path in (job.library, *job.inputs.values()):
            _put(connection, path, f"{work}/{path.name}")
        if self.device.cool_down:
            time.sleep(self.device.cool_down)
        before = _facts(connection, STATE)
        done = connection.run(f"cd {shlex.quote(work)} && echo $$ > pid && exec {self._command(program, job)}")
        if done.status != 0:
            raise _full(self.device, done.said) or refusal(f"device {self.name}", done.status, done.said)
        facts: dict[str, Any] = json.loads(done.answer)
        after = _facts(connection, STATE)
        for index in range(job.outputs):
            self._fetch(connection, f"{work}/out{index}.npy", job.folder / f"out{index}.npy")
        return facts | _told(about, before, after) | {"waited": connection.waited}

    def _command(self, program: str, job: Job) -> str:
        inputs = {name: path.name for name, path in job.inputs.items()}
        words = [*self.device.prefix, program, job.library.name, *job.arguments(inputs, ".")]
        if self.device.cpus:
            words += ["--cpus", ",".join(map(str, self.device.cpus))]
        return shlex.join(words)

    def _fetch(self, connection: Connection, source: str, path: Path) -> None:
        done = connection.run(f"cat {shlex.quote(source)}", into=path)
        if done.status != 0:
            raise unusable(self.device, done.said)


def _facts(connection: Connection, script: str) -> dict[str, str]:
    """Return what a script says in lines of ``name=value``, without what has no value."""
    lines = connection.run(script).answer.decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition("=") for line in lines) if value.strip()}


def _runner(connection: Connection, program: Path) -> str:
    """Return where forge-run of these bytes is on the board, sent there unless it has it."""
    digest = digest_file(program)
    place = f"{connection.device.folder}/forge-run-{digest}"
    check = f"echo {digest}'  '{shlex.quote(place)} | sha256sum -c"
    if connection.run(check).status != 0:
        _put(connection, program, place)
        done = connection.run(f"chmod 700 {shlex.quote(place)} && {check}")
        if done.status != 0:
            raise unusable(connection.device, done.said)
    return place


def _put(connection: Connection, path: Path, place: str) -> None:
    part = shlex.quote(f"{place}.part")
    done = connection.run(f"cat > {part} && mv {part} {shlex.quote(place)} || {{ rm -f {part}; exit 1; }}", send=path)
    if done.status != 0:
        raise _full(connection.device, done.said) or unusable(connection.device, done.said)


def _full(device: Device, said: str) -> DeviceError | None:
    if "No space left" not in said and "a disk that is full" not in said:
        return None
    fix = f"make room in {device.folder}, or name another `folder`"
    return DeviceError(f"device {device.name}", "room for the model, its samples and outputs", "a full disk", fix)


def _told(about: dict[str, str], before: dict[str, str], after: dict[str, str]) -> dict[str, Any]:
    """Return what the result is recorded with."""
    told: dict[str, Any] = {"cpu": f"{about['arch']}, {about['cpu']}" if "cpu" in about else about["arch"]}
    told |= {name: value for name in ("kernel",) if (value := about.get(name))}
    told |= {name: value for name in ("governor", "khz", "throttled") if (value := after.get(name))}
    for when, state in (("before", before), ("after", after)):
        if "millicelsius" in state:
            told[f"celsius_{when}"] = int(state["millicelsius"]) / 1000
    return told
