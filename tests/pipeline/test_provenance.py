"""What a delivery says of how it came to be: all that decides its bytes, and nothing of when, where and by whom."""

from __future__ import annotations

import base64
import csv
import getpass
import importlib.metadata
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.digest import digest_file
from forge_pipeline.pipeline.provenance import _commit, installed_digest


def test_it_names_the_model_the_samples_the_tools_and_every_stage(finished: Any) -> None:
    definition = json.loads((finished.out / "provenance.json").read_text())["predicate"]["buildDefinition"]
    described = {item["name"]: item for item in definition["resolvedDependencies"]}
    folder = finished.out.parent
    assert described["model.path"]["digest"]["sha256"] == digest_file(folder / "tiny.onnx")
    assert described["data.path"]["digest"]["sha256"] == digest_file(folder / "samples.npz")
    assert described["ziglang"]["uri"] == f"pkg:pypi/ziglang@{importlib.metadata.version('ziglang')}"
    manifest = json.loads((finished.out / "manifest.json").read_text())
    stages = definition["internalParameters"]["stages"]
    assert {row["stage"]: row["action_key"] for row in manifest["stages"]} == {
        name: made["action_key"] for name, made in stages.items()
    }


def test_it_tells_nothing_of_where_and_by_whom(finished: Any) -> None:
    text = (finished.out / "provenance.json").read_text()
    for local in (str(finished.out.parent), f'"{socket.gethostname()}"', f"/{getpass.getuser()}/"):
        assert local not in text


def test_a_wheels_digest_follows_from_what_it_installed_and_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, installer in (("one", b"pip"), ("two", b"uv")):
        info = tmp_path / name / "thing-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        code = base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")
        mark = base64.urlsafe_b64encode(installer.ljust(32)).decode().rstrip("=")
        rows = [("thing.py", f"sha256={code}", "3"), (f"{info.name}/INSTALLER", f"sha256={mark}", "3")]
        with (info / "RECORD").open("w") as stream:
            csv.writer(stream).writerows([*rows[:: 1 if name == "one" else -1], (f"{info.name}/RECORD", "", "")])
        with monkeypatch.context() as path:
            path.syspath_prepend(tmp_path / name)
            installed_digest.cache_clear()
            found.append(installed_digest("thing"))
    installed_digest.cache_clear()
    assert found[0] == found[1] is not None


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_commit_of_the_folder_is_named_and_no_commit_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert [*_commit()] == []
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    assert [*_commit()] == []
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert [*_commit()] == [{"name": "configuration", "digest": {"gitCommit": head}}]
