"""A board for tests: OpenSSH's own server, with a port and keys of its own, here or in a network of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.runners.device import Device
from tests.support.wait import until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running sshd, and the device that it plays."""

    device: Device
    process: subprocess.Popen[bytes]
    folder: Path
    link: str | None = None

    @property
    def running(self) -> list[int]:
        """Processes of the board that work in its folder: forge-run, the keeper, none of ours."""
        return [pid for pid, line in _processes() if self.device.folder in line and not line.startswith("ssh ")]

    def started(self) -> None:
        """Wait until forge-run runs, not only the shell that will start it."""
        until(lambda: any("--samples" in line and line.startswith(self.device.folder) for _, line in _processes()))

    def is_clean(self) -> None:
        """Wait until nothing of a job is left: no process, no folder."""
        until(lambda: not self.running and not list(Path(self.device.folder).glob("job.*")))

    def kill(self) -> None:
        """End the server and its connections, and none of what runs in them."""
        for pid in [*_below(self.process.pid), self.process.pid]:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "sshd\n":
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def cut(self) -> None:
        """Cut the network: nothing is sent any more, and nobody is told."""
        assert self.link is not None
        assert IP is not None
        subprocess.run([IP, "link", "set", self.link, "down"], check=True)


@contextlib.contextmanager
def serving(folder: Path, *, network: bool = False, settings: Sequence[str] = (), **changes: Any) -> Iterator[Server]:
    """Start a server that plays a board whose working folder is in ``folder``; skips where there is none."""
    if SSHD is None:
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the server of a root shuts itself in
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with _network(network) as (address, prefix, link):
        port = _free_port() if link is None else 22022
        options = {
            "Port": port,
            "ListenAddress": address,
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "UsePAM": "no",
            "PidFile": "none",
            "SetEnv": "SHLVL=9",  # a shell that thinks so reads no settings of whoever runs the tests
        }
        config = folder / "sshd_config"
        lines = [*settings, *(f"{name} {value}" for name, value in options.items())]  # of two, the first counts
        config.write_text("\n".join(lines) + "\n")
        known = folder / "known_hosts"
        known.write_text(f"[{address}]:{port} {' '.join((folder / 'host.pub').read_text().split()[:2])}\n")
        values: dict[str, Any] = {
            "name": "lab", "host": address, "user": _user(), "port": port, "identity": str(folder / "user"),
            "known_hosts": str(known), "folder": str(folder / "board"), "prefix": (), "cpus": (), "cool_down": 0.0,
            "silence": 2.0, "wait": 30.0, "retries": 0,
        }  # fmt: skip
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*prefix, SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        server = Server(device=Device(**(values | changes)), process=process, folder=folder, link=link)
        try:
            until(lambda: b"listening" in (folder / "log").read_bytes())
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def _network(wanted: bool) -> Iterator[tuple[str, list[str], str | None]]:
    if not wanted:
        yield "127.0.0.1", [], None
        return
    if IP is None or os.getuid() != 0:
        pytest.skip("a network of its own needs root, and `ip`: apt-get install iproute2")
    name, number = f"forge{os.getpid()}", os.getpid() % 200
    here, there = f"10.213.{number}.1", f"10.213.{number}.2"
    link, far = f"fh{os.getpid()}", f"fb{os.getpid()}"
    made = subprocess.run([IP, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr}")
    try:
        for words in (
            f"link add {link} type veth peer name {far} netns {name}",
            f"addr add {here}/24 dev {link}",
            f"link set {link} up",
            f"-n {name} addr add {there}/24 dev {far}",
            f"-n {name} link set {far} up",
        ):
            subprocess.run([IP, *words.split()], check=True)
        yield there, [IP, "netns", "exec", name], link
    finally:
        subprocess.run([IP, "link", "del", link], check=False)
        subprocess.run([IP, "netns", "del", name], check=False)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def _below(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (*_below(child), child)]
