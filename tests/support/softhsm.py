"""A token for tests: SoftHSM, with a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/softhsm/libsofthsm2.so", "/usr/lib/libsofthsm2.so")
PIN, OTHER_PIN = "correct horse 7", "another horse 7"


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose PIN is in FORGE_PKCS11_PIN, and whose module in FORGE_PKCS11_MODULE."""

    folder: Path
    module: Path
    label: str = "forge"

    def uri(self, key: str = "release", query: str = "") -> str:
        """Return the URI of a key."""
        return f"pkcs11:token={self.label};object={key}{query}"

    def pull(self) -> None:
        """Take the token away."""
        shutil.move(self.folder / "tokens", self.folder / "pulled")
        (self.folder / "tokens").mkdir()

    def put_back(self) -> None:
        """Undo `pull`."""
        (self.folder / "tokens").rmdir()
        shutil.move(self.folder / "pulled", self.folder / "tokens")

    def tool(self, *arguments: str) -> str:
        """Return what OpenSC's pkcs11-tool says, with the user logged in."""
        program = shutil.which("pkcs11-tool")
        if program is None:
            pytest.skip("pkcs11-tool is not installed: apt-get install opensc")
        login = ("--module", str(self.module), "--token-label", self.label, "--login", "--pin", PIN)
        return subprocess.run([program, *login, *arguments], check=True, capture_output=True, text=True).stdout


def softhsm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Return a new token in ``folder``; skip where there is no SoftHSM, or no pykcs11."""
    program = shutil.which("softhsm2-util")
    module = next((Path(path) for path in MODULES if Path(path).is_file()), None)
    if program is None or module is None:
        pytest.skip("SoftHSM is not installed: apt-get install softhsm2")
    if importlib.util.find_spec("PyKCS11") is None:
        pytest.skip("pykcs11 is not installed: pip install 'forge-pipeline[pkcs11]'")
    token = Token(folder, module)
    (folder / "tokens").mkdir(parents=True)
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    for name, value in (
        ("SOFTHSM2_CONF", str(folder / "softhsm2.conf")),
        ("FORGE_PKCS11_MODULE", str(module)),
        ("FORGE_PKCS11_PIN", PIN),
    ):
        monkeypatch.setenv(name, value)
    pins = ("--pin", PIN, "--so-pin", "of the officer")
    subprocess.run(
        [program, "--init-token", "--free", "--label", token.label, *pins],
        check=True, capture_output=True, env=dict(os.environ),
    )  # fmt: skip
    return token
