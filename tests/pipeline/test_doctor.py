"""forge-pipeline doctor: what is there was tried, what is not there says how to get it, what is wrong exits 1."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.cli import main
from forge_pipeline.pipeline.doctor import EXTRAS
from tests.support.paths import ROOT

OF_DEVELOPMENT = {"servers", "all", "examples", "bench", "dev"}


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], tuple[Any, dict[str, Any]]]:
    monkeypatch.setenv("FORGE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("FORGE_STORE_REMOTE", raising=False)

    def doctor() -> tuple[Any, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--json"])
        said = json.loads(capsys.readouterr().out)
        return ended.value.code, said | {finding["name"]: finding for finding in said["findings"]}

    return doctor


def _tool(path: Path, status: int) -> None:
    path.write_text(f"#!/bin/sh\necho tool version 7.2\nexit {status}\n")
    path.chmod(0o755)


def test_a_program_that_does_not_start_is_none(
    doctor: Callable[[], tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _tool(tmp_path / "qemu-riscv64", 0)
    _tool(tmp_path / "qemu-aarch64", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    code, said = doctor()
    assert code == 0 and said["sound"]
    assert said["qemu-riscv64"]["state"] == "ready" and "7.2" in said["qemu-riscv64"]["found"]
    assert said["qemu-aarch64"]["state"] == "absent" and "apt-get" in said["qemu-aarch64"]["get"]
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_no_folder_and_a_remote_that_is_away_are_wrong(
    doctor: Callable[[], tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "store").write_text("")
    monkeypatch.setenv("FORGE_STORE_REMOTE", "http://127.0.0.1:9/none")
    code, said = doctor()
    assert code == 1 and not said["sound"]
    assert said["store"]["state"] == "wrong"
    assert said["remote"]["state"] == "wrong" and "unset" in said["remote"]["get"]


def test_a_remote_that_answers_is_ready(
    doctor: Callable[[], tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    monkeypatch.setenv("FORGE_STORE_REMOTE", f"file://{tmp_path}/far")
    code, said = doctor()
    assert code == 0 and said["remote"]["state"] == "ready"


def test_every_extra_for_users_is_looked_at() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - OF_DEVELOPMENT
