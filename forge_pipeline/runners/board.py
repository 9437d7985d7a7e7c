"""A board as a place that runs artifacts: what it is, what it lacks, the run, and what comes back."""

from __future__ import annotations

import shlex
import shutil
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ForgeError, MachineError, SecretError
from forge_pipeline.runners.contract import Facts, Job, facts_of
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.ssh import Connection, LostError, connected, unusable
from forge_pipeline.runtime.native import native_runner
from forge_pipeline.target.host import ARCHITECTURES
from forge_runtime.secret import Secret

PROGRAM: Final = "forge-run"
SAID, ERROR, BEFORE, AFTER = "said", "error", "before", "after"
"""The files of texts that come back beside the outputs."""

ASKING: Final = """
case $(command -v printf) in */*) echo 'printf is no part of this shell: a password would show' >&2; exit 1;; esac
IFS= read -r secret || exit
"""
GIVING: Final = "printf '%s' \"$secret\" |"
"""How a shell gets a password, and hands it on."""

PAUSE: Final = 1.0
"""Seconds before a connection is tried again, doubled each time."""

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
        about = connection.about
        arch = ARCHITECTURES.get(about["arch"], about["arch"])
        wanted = self.triple.partition("-")[0]
        if arch != ARCHITECTURES.get(wanted):
            fix = "choose a target of its architecture, or another device"
            raise MachineError(f"device {self.name}", f"a board of {wanted}", f"one of {arch}", fix)
        program = native_runner(arch)
        digest = digest_file(program)
        sent, got = job.folder / "sent.tar", job.folder / "got.tar"
        _pack(sent, job, None if digest in connection.programs else program)
        password = None if job.seal is None else _one_line(job.seal.password)
        done = connection.run(self._script(connection.work, f"forge-run-{digest}", job), sent, got, password)
        if not got.stat().st_size:
            raise unusable(self.device, done.said)
        try:
            texts = _unpack(got, job)
            if done.status != 0:
                raise _refusal(self.device, job, done.status, texts[ERROR])
            return facts_of(texts[SAID]) | _told(about, _lines(texts[BEFORE]), _lines(texts[AFTER]))
        except (tarfile.TarError, ValueError, LookupError, TypeError, EOFError, RecursionError) as error:
            raise unusable(self.device, f"an answer that is none: {error}") from error

    def _script(self, work: str, program: str, job: Job) -> str:
        """Return what is run on the board: a tar archive in, a tar archive out, and forge-run's exit status.

        A password is the line before the archive. It stays a variable of the shell, which no child inherits, and its
        own `printf` hands it on: that of a program would show it among the arguments.
        """
        place = f"{self.device.folder}/{program}"
        inputs = {name: path.name for name, path in job.inputs.items()}
        key = None if job.seal is None else job.seal.key.name
        words = [*self.device.prefix, place, job.library.name, *job.arguments(inputs, ".", key)]
        if self.device.cpus:
            words += ["--cpus", ",".join(map(str, self.device.cpus))]
        own = "echo $$ >pid; exec " + shlex.join(words)  # `exec`: what the keeper ends is forge-run
        ask, give = ("", "") if key is None else (ASKING, GIVING)
        return f"""{ask} cd {shlex.quote(work)} && tar xf - || exit
            [ ! -f forge-run ] || {{ chmod 700 forge-run && mv forge-run {shlex.quote(place)}; }} || exit
            sleep {self.device.cool_down:g}
            state() {{ {STATE} }}
            state >{BEFORE}
            {give} sh -c {shlex.quote(own)} >{SAID} 2>{ERROR}; code=$?
            state >{AFTER}
            rm -f pid {shlex.join([job.library.name, *([] if key is None else [key]), *inputs.values()])}
            tar cf - * && exit $code"""


def _one_line(password: Secret) -> Secret:
    """Return the password, which a shell is to read as a line. Raises SecretError where it is none."""
    if any(letter in password.reveal() for letter in b"\n\0"):
        raise SecretError("password", "one line, as it is sent to a board", "several", "encrypt with another password")
    return password


def _pack(archive: Path, job: Job, program: Path | None) -> None:
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as packed:
        if program is not None:
            packed.add(program, PROGRAM)
        key = [] if job.seal is None else [job.seal.key]
        for path in (job.library, *key, *job.inputs.values()):
            packed.add(path, path.name)


def _unpack(archive: Path, job: Job) -> dict[str, str]:
    """Put the outputs into the job's folder; return the texts. Names that are not expected are not looked at."""
    texts = dict.fromkeys((SAID, ERROR, BEFORE, AFTER), "")
    outputs = {f"out{index}.npy" for index in range(job.outputs)}
    with tarfile.open(archive) as packed:
        for member in packed:
            stream = packed.extractfile(member) if member.isreg() else None
            if stream is None:
                continue
            if member.name in texts:
                texts[member.name] = stream.read().decode("utf-8", "replace")
            elif member.name in outputs:
                with (job.folder / member.name).open("wb") as file:
                    shutil.copyfileobj(stream, file)
    return texts


def _refusal(device: Device, job: Job, status: int, said: str) -> ForgeError:
    if "a disk that is full" in said:
        return unusable(device, said)
    key = None if job.seal is None else job.seal.key.name
    return job.refusal(f"device {device.name}", status, said, job.library.name, key)


def _lines(text: str) -> dict[str, str]:
    """Return lines of ``name=value`` as a mapping, without what has no value."""
    return {
        name: value.strip() for name, _, value in (line.partition("=") for line in text.splitlines()) if value.strip()
    }


def _told(about: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return what the result is recorded with."""
    told: dict[str, Any] = {"cpu": f"{about['arch']}, {about['cpu']}" if about["cpu"] else about["arch"]}
    told |= {"kernel": about["kernel"]} | {
        name: after[name] for name in ("governor", "khz", "throttled") if name in after
    }
    for when, state in (("before", before), ("after", after)):
        if "millicelsius" in state:
            told[f"celsius_{when}"] = int(state["millicelsius"]) / 1000
    return told
