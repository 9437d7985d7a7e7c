"""Servers that others made, on 127.0.0.1, as remotes: rclone's, moto, OpenSSH's, Azurite, a storage emulator."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "builder", "hunter2secret"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own
KEYS = {"key": USER, "secret": PASSWORD}

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: where a remote is in it, for a client that reaches it at a port (its own, or a proxy's)."""

    port: int
    url: Callable[[int], str]
    options: Callable[[int], Options] = lambda port: {}
    wrong: Options = field(default_factory=dict)
    """Options that make its credentials wrong."""
    missing: tuple[str, str] = ("", "")
    """What to replace in the URL, by what, so that the place does not exist."""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where servers run."""

    folder: Path
    running: ExitStack

    def start(self, command: list[str], port: int, **environment: str) -> None:
        log = self.running.enter_context((self.folder / "server.log").open("w"))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder), **environment},
        )  # fmt: skip
        self.running.enter_context(process)
        self.running.callback(process.kill)
        end = time.monotonic() + 60
        while True:
            assert process.poll() is None, (self.folder / "server.log").read_text()
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionError:
                assert time.monotonic() < end
                time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tool(name: str, *places: str) -> str:
    """Return a program's path; skip the test without it."""
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent), *places]))
    if found is None:
        pytest.skip(f"no {name} here; `make servers` installs it")
    return found


def module(name: str) -> None:
    """Skip the test without a module."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name} here; `make servers` installs it")


def _moto(ground: _Ground) -> Server:
    module("moto")
    module("s3fs")
    import s3fs

    port = free_port()
    ground.start([sys.executable, "-m", "moto.server", "-p", str(port)], port)
    s3fs.S3FileSystem(**KEYS, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True).mkdir("bucket")
    return _s3(port)


def _s3(port: int) -> Server:
    return Server(
        port=port,
        url=lambda port: "s3://bucket/cache",
        options=lambda port: {**KEYS, "endpoint_url": f"http://127.0.0.1:{port}"},
        wrong={"secret": "wrongwrong"},
        missing=("bucket", "bukcet"),
    )


def _rclone(*arguments: str) -> Callable[[_Ground], int]:
    def start(ground: _Ground) -> int:
        port = free_port()
        (ground.folder / "files" / "bucket").mkdir(parents=True)
        address = ["--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "writes"]
        ground.start([tool("rclone"), "serve", *arguments, str(ground.folder / "files"), *address], port)
        return port

    return start


def _rclone_s3(ground: _Ground) -> Server:
    module("s3fs")
    known = subprocess.run(
        [tool("rclone"), "serve", "s3", "--help"], capture_output=True, text=True, check=False
    ).stdout
    if "--auth-key" not in known:
        pytest.skip("this rclone serves no S3: 1.65 does")
    return _s3(_rclone("s3", "--auth-key", f"{USER},{PASSWORD}")(ground))


def _rclone_webdav(ground: _Ground) -> Server:
    module("webdav4")
    return Server(
        port=_rclone("webdav", "--user", USER, "--pass", PASSWORD)(ground),
        url=lambda port: f"webdav://127.0.0.1:{port}/bucket/cache",
        options=lambda port: {"auth": [USER, PASSWORD]},
        wrong={"auth": [USER, "wrongwrong"]},
        missing=("bucket", "bukcet"),
    )


def _rclone_http(ground: _Ground) -> Server:
    return Server(
        port=_rclone("http", "--user", USER, "--pass", PASSWORD)(ground),
        url=lambda port: f"http://{USER}:{PASSWORD}@127.0.0.1:{port}/bucket/cache",
        missing=("", ""),
        writable=False,
    )


def _rclone_sftp(ground: _Ground) -> Server:
    module("sshfs")
    port = _rclone("sftp", "--user", USER, "--pass", PASSWORD)(ground)
    known = _known_hosts(ground, port)
    return Server(
        port=port,
        url=lambda port: f"sftp://127.0.0.1:{port}/bucket/cache",
        options=lambda port: {"username": USER, "password": PASSWORD, "known_hosts": known, "client_keys": None},
        wrong={"password": "wrongwrong"},
        missing=("bucket", "bukcet"),
    )


def _known_hosts(ground: _Ground, port: int) -> str:
    scanned = subprocess.run(
        ["ssh-keyscan", "-p", str(port), "127.0.0.1"], capture_output=True, text=True, check=True
    ).stdout
    path = ground.folder / "known_hosts"
    path.write_text("".join("* " + line.partition(" ")[2] + "\n" for line in scanned.splitlines() if line[0] != "#"))
    return str(path)


def _openssh(ground: _Ground) -> Server:
    module("sshfs")
    sshd, keygen = tool("sshd", "/usr/sbin"), tool("ssh-keygen")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(ground.folder / name)], check=True)
    port = free_port()
    lines = [
        f"ListenAddress 127.0.0.1:{port}", f"HostKey {ground.folder}/host", f"PidFile {ground.folder}/pid",
        f"AuthorizedKeysFile {ground.folder}/user.pub", "StrictModes no", "UsePAM no", "PermitRootLogin yes",
        "PasswordAuthentication no", "Subsystem sftp internal-sftp",
    ]  # fmt: skip
    (ground.folder / "sshd_config").write_text("\n".join(lines) + "\n")
    ground.start([sshd, "-D", "-e", "-f", str(ground.folder / "sshd_config")], port)
    (ground.folder / "files" / "bucket").mkdir(parents=True)
    known = _known_hosts(ground, port)
    return Server(
        port=port,
        url=lambda port: f"sftp://127.0.0.1:{port}{ground.folder}/files/bucket/cache",
        options=lambda port: {"client_keys": [str(ground.folder / "user")], "known_hosts": known},
        wrong={"client_keys": [str(ground.folder / "host")]},
        missing=("bucket", "bukcet"),
    )


def _emulated_gs(ground: _Ground) -> Server:
    module("gcsfs")
    command = tool("gcp-storage-emulator", str(Path(sys.prefix) / "bin"))
    port = free_port()
    address = ["--host", "127.0.0.1", "--port", str(port), "--default-bucket", "bucket", "--in-memory"]
    ground.start([command, "start", *address], port)
    return Server(
        port=port,
        url=lambda port: "gs://bucket/cache",
        options=lambda port: {"token": "anon", "endpoint_url": f"http://127.0.0.1:{port}"},
        missing=("bucket", "bukcet"),
    )


def _azurite(ground: _Ground) -> Server:
    module("adlfs")
    command = tool("azurite-blob")
    port = free_port()
    ground.start(
        [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence",
         "--skipApiVersionCheck", "--disableTelemetry", "--silent"], port,
    )  # fmt: skip
    from azure.storage.blob import BlobServiceClient

    def options(port: int, key: str = AZURE_KEY) -> Options:
        where = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1"
        account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key}"
        return {"connection_string": f"{account};{where};"}

    BlobServiceClient.from_connection_string(options(port)["connection_string"]).create_container("bucket")
    return Server(
        port=port,
        url=lambda port: "az://bucket/cache",
        options=options,
        wrong=options(port, AZURE_KEY.replace("E", "F")),
        missing=("bucket", "bukcet"),
    )


SERVERS: Mapping[str, Callable[[_Ground], Server]] = {
    "moto s3": _moto,
    "rclone s3": _rclone_s3,
    "rclone webdav": _rclone_webdav,
    "rclone sftp": _rclone_sftp,
    "rclone http": _rclone_http,
    "OpenSSH sftp": _openssh,
    "emulated gs": _emulated_gs,
    "Azurite": _azurite,
}


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """Run a server for as long as the body; skip the test where it is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        yield SERVERS[name](_Ground(folder, running))
