"""A board that is reached over SSH: conf/device/*.yaml, bound strictly, and the host key that it is known by."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from forge_pipeline import children
from forge_pipeline.config import bind
from forge_pipeline.digest import digest_json
from forge_pipeline.errors import ConfigError, DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One file of conf/device.

    ``known_hosts`` is the file with the board's host key, ``identity`` that of the private key; None for those of
    ssh's own configuration and agent. ``folder`` is on the board. ``prefix`` are words before the command there, such
    as `nice -n -10`; ``cpus`` are those that its threads stay on. Seconds: ``silence`` after which the board, or the
    build, is taken for gone; ``wait`` for the builds before this one; ``cool_down`` before anything is timed.
    ``retries`` are made where the connection breaks.
    """

    name: str
    host: str
    user: str
    port: int
    identity: str | None
    known_hosts: str
    folder: str
    prefix: tuple[str, ...]
    cpus: tuple[int, ...]
    cool_down: float
    silence: float
    wait: float
    retries: int

    def __post_init__(self) -> None:
        least = {"port": 1, "cool_down": 0, "silence": 1, "wait": 0, "retries": 0}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                self._refuse(name, f"at least {minimum}", str(getattr(self, name)))
        for name in ("host", "user"):
            value: str = getattr(self, name)
            if not value or value.startswith("-") or any(letter.isspace() for letter in value):
                self._refuse(name, "a name", repr(value))
        if not self.folder.startswith("/"):
            self._refuse("folder", "a path from the root", repr(self.folder))

    def _refuse(self, name: str, expected: str, found: str) -> None:
        raise ConfigError(f"device.{name}", expected, found, f"correct `{name}` in conf/device/{self.name}.yaml")

    @classmethod
    def of(cls, section: Mapping[str, Any] | None) -> Self | None:
        """Return the device that the configuration's section names, if any. Raises ConfigError."""
        if section is None or section.get("name") is None:
            return None
        return bind(cls, section, where="device")

    @property
    def known_hosts_path(self) -> Path:
        """Where the board's host key is."""
        return Path(self.known_hosts).expanduser().absolute()

    def fingerprint(self) -> str:
        """Return a digest of the host keys that the board is known by: another board has another.

        Raises DeviceError where the file has none for it.
        """
        host = self.host if self.port == 22 else f"[{self.host}]:{self.port}"
        command = ["ssh-keygen", "-F", host, "-f", str(self.known_hosts_path)]
        try:
            done = subprocess.run(command, env=children.environment(), capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise no_client(self.name) from error
        lines = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
        keys = sorted(words[1:3] for words in lines if len(words) >= 3)
        if not keys:
            raise DeviceError(
                where=f"device {self.name}",
                expected=f"the host key of {host} in {self.known_hosts}",
                found="none",
                fix=f"get it from the board itself, or see what answers: `ssh-keyscan -p {self.port} {self.host}`",
            )
        return digest_json(keys)


def no_client(name: str) -> DeviceError:
    """Return the error for a machine without ssh."""
    return DeviceError(f"device {name}", "OpenSSH's client", "no ssh", "apt-get install openssh-client")
