"""Debian's chromium without a window: what it makes of a page, as its screen shows it and as its console tells it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
)  # fmt: skip
LIGHT, DARK = "--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0"


def visit(page: str, *flags: str) -> tuple[str, str]:
    """Return what chromium prints for an address, and what the page's console says; skip where there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here (Debian's package chromium)")
    with TemporaryDirectory(prefix="chromium-") as profile:
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", *flags, page]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def picture(page: str, path: Path, *flags: str, width: int = 1180, height: int = 900) -> None:
    """Write what the screen shows of a page as a PNG."""
    visit(page, f"--screenshot={path}", f"--window-size={width},{height}", *flags)
