"""One connection to a board by OpenSSH's own client: a master that keeps the board, and commands that share it.

docs/decisions/0060 says why it is this client and no library.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from forge_pipeline import children
from forge_pipeline.errors import DeviceError
from forge_pipeline.runners.device import Device, no_client
from forge_runtime.secret import Secret
from forge_runtime.text import shown

KEEPER: Final = Path(__file__).with_name("keeper.sh")
CONNECT_SECONDS: Final = 15
GONE: Final = 255
"""How ssh ends where the connection, not the command, failed."""


class LostError(DeviceError):
    """The connection failed: it may work another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ended on the board."""

    status: int
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A board that is ours until the connection ends. ``work`` is a folder there, which ends with it.

    ``about``: its `arch`, `kernel` and `cpu`; ``programs``: digests of the forge-runs that it has.
    """

    device: Device
    folder: str
    work: str
    about: Mapping[str, str]
    programs: frozenset[str]

    def run(self, command: str, send: Path, into: Path, secret: Secret | None = None) -> Done:
        """Run a command of the board's shell with a file as its input; its output becomes the other file.

        ``secret`` is sent before the file, as a line: it is in no argument and in no file, on either side. Raises
        LostError where the connection ends before the command.
        """
        words = ["ssh", *_options(self.device), "-o", "ControlMaster=no", "-T", _address(self.device)]
        with send.open("rb") as given, into.open("wb") as answer, subprocess.Popen(
            [*words, f"sh -c {shlex.quote(command)}"],
            stdin=given if secret is None else subprocess.PIPE, stdout=answer, stderr=subprocess.PIPE,
            cwd=self.folder, env=environment(),
        ) as child:  # fmt: skip
            try:
                if secret is not None and child.stdin is not None:
                    threading.Thread(target=_feed, args=(child.stdin, secret, given), daemon=True).start()
                said = b"" if child.stderr is None else child.stderr.read()
                child.wait()
            except BaseException:
                child.kill()
                raise
        if child.returncode == GONE:
            raise lost(self.device, said.decode("utf-8", "replace"))
        return Done(status=child.returncode, said=said.decode("utf-8", "replace"))


def _feed(sink: IO[bytes], secret: Secret, given: IO[bytes]) -> None:
    """Write the secret's line and the file; a board that ends before is not our error: its status is."""
    with suppress(OSError, ValueError), sink:
        sink.write(secret.reveal() + b"\n")
        shutil.copyfileobj(given, sink)


def environment() -> dict[str, str]:
    """Return the environment of ssh: what every child gets, and the agent that holds keys."""
    agent = os.environ.get("SSH_AUTH_SOCK")
    return children.environment() | ({} if agent is None else {"SSH_AUTH_SOCK": agent})


@contextmanager
def connected(device: Device) -> Iterator[Connection]:
    """Connect, wait for our turn and make a folder on the board; all of it ends with the context.

    Raises LostError where the board does not answer, DeviceError where its key is another or it refuses us.
    """
    if shutil.which("ssh") is None:
        raise no_client(device.name)
    folder = tempfile.mkdtemp(prefix="forge-ssh-", dir="/tmp" if len(tempfile.gettempdir()) > 60 else None)  # noqa: S108  a socket's name is short
    script = f"sh -c {shlex.quote(KEEPER.read_text('utf-8'))} keeper {shlex.quote(device.folder)} {device.silence:g}"
    try:
        with tempfile.TemporaryFile() as said, subprocess.Popen(
            ["ssh", *_options(device), "-o", "ControlMaster=yes", "-T", _address(device), script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=folder, env=environment(),
            start_new_session=True,
        ) as master:  # fmt: skip
            over = threading.Event()
            source, sink = (stream.fileno() for stream in (master.stdout, master.stdin) if stream is not None)
            try:
                lines = _ready(device, source, master, said)
                threading.Thread(target=_heartbeat, args=(sink, over, device.silence / 4), daemon=True).start()
                about = dict(line.split("=", 1) for line in lines if "=" in line)
                programs = frozenset(line.partition("=")[2] for line in lines if line.startswith("program="))
                try:
                    yield Connection(device=device, folder=folder, work=about["ready"], about=about, programs=programs)
                except DeviceError as error:
                    if isinstance(error, LostError) or not _is_over(master):
                        raise
                    said.seek(0)  # the keeper went first, and the job's folder with it: what a command says is not why
                    raise lost(device, said.read().decode("utf-8", "replace")) from error
            finally:
                over.set()
                _end(master, device)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(device: Device) -> list[str]:
    """Return ssh's options: nothing is asked, an unknown or another host key is refused, silence ends it."""
    settings = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(device.known_hosts_path),
        "GlobalKnownHostsFile": "/dev/null",
        "UpdateHostKeys": "no",
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": str(max(1, round(device.silence / 3))),
        "ServerAliveCountMax": "3",
        "ControlPath": "./master",
        "ControlPersist": "no",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "EscapeChar": "none",
        "LogLevel": "ERROR",
    }
    if device.identity is not None:
        settings |= {"IdentityFile": str(Path(device.identity).expanduser().absolute()), "IdentitiesOnly": "yes"}
    return [*(word for name, value in settings.items() for word in ("-o", f"{name}={value}")), "-p", str(device.port)]


def _address(device: Device) -> str:
    return f"{device.user}@{device.host}"


def _ready(device: Device, source: int, master: subprocess.Popen[bytes], said: IO[bytes]) -> list[str]:
    """Return the keeper's lines, once it has the board."""
    until, text = time.monotonic() + CONNECT_SECONDS * 2, ""
    while not (text.endswith("\n") and "ready=" in text):
        readable, _, _ = select.select([source], [], [], max(0.0, until - time.monotonic()))
        more = os.read(source, 4096) if readable else b""
        if not more:
            raise _unready(device, master, said, waited="waiting" in text)
        text += more.decode("utf-8", "replace")
        if text == "waiting\n":
            until = time.monotonic() + device.wait
    return text.splitlines()


def _unready(device: Device, master: subprocess.Popen[bytes], said: IO[bytes], *, waited: bool) -> DeviceError:
    if not _is_over(master) and waited:
        return DeviceError(
            f"device {device.name}", f"its turn within {device.wait:g} s", "another build that uses it",
            "wait for that build to end, or raise `wait` in its file",
        )  # fmt: skip
    said.seek(0)
    why = said.read().decode("utf-8", "replace")
    return lost(device, why) if master.returncode in (GONE, None) else unusable(device, why)


def _is_over(master: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        master.wait(1)
    return master.returncode is not None


def _heartbeat(sink: int, over: threading.Event, seconds: float) -> None:
    while not over.wait(seconds):
        try:
            os.write(sink, b"\n")
        except (OSError, ValueError):
            return


def _end(master: subprocess.Popen[bytes], device: Device) -> None:
    """Let the keeper tidy up; where it does not in time, it finds by the silence that nobody is there."""
    if master.stdin is not None:
        with suppress(OSError):
            master.stdin.close()
    try:
        master.wait(min(device.silence, 5))
    except subprocess.TimeoutExpired:
        master.kill()


def lost(device: Device, said: str) -> DeviceError:
    """Return the error for a connection that failed, by what ssh said."""
    text = " ".join(said.split())
    where = f"device {device.name}"
    if "HOST IDENTIFICATION HAS CHANGED" in text or "Host key verification failed" in text:
        return DeviceError(
            where, f"the host key that {device.known_hosts} has for {device.host}", "another host key",
            "find out why: only where the board was set up anew is it right to replace the key",
        )  # fmt: skip
    if "Permission denied" in text:
        return DeviceError(where, f"to be let in as {device.user}", shown(text), "put the public key on the board")
    return LostError(where, "a board that answers", shown(text) or "no answer", "see that it runs and is connected")


def unusable(device: Device, said: str) -> DeviceError:
    """Return the error for a board that does not do what every board has to."""
    text = shown(" ".join(said.split())[-200:]) or "no word"
    if "No space left" in said or "a disk that is full" in said:
        fix = f"make room in {device.folder}, or name another `folder`"
        return DeviceError(f"device {device.name}", "room for the model, its samples and outputs", "a full disk", fix)
    fix = "see what it says, and correct it there"
    return DeviceError(f"device {device.name}", f"a working folder in {device.folder}", text, fix)
