"""A sealed delivery, built again, and looked into with the password."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.crypto.signing import read_key
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import SecretError, VerificationError
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.verify.checks import Checks, verify
from forge_pipeline.pipeline.verify.rebuild import Materials


@pytest.fixture
def out(forge: Any, warm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sealed delivery, signed by `key`."""
    folder = warm.out.parent
    delivery.keygen(tmp_path / "key", "us")
    monkeypatch.setenv("OPENS", "correct horse")
    monkeypatch.setenv("OPENS_NOT", "battery staple")
    options = (f"model.path={folder / 'tiny.onnx'}", f"data.path={folder / 'samples.npz'}", "quantize=static")
    environment = {"FORGE_PASSWORD": os.environ["OPENS"], "FORGE_SIGNING_KEY": (tmp_path / "key").read_text()}
    done = forge("run", *options, "encrypt=password", "sign=key", f"out={tmp_path / 'out'}", env=environment)
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


def checked(out: Path, **checks: Any) -> list[str]:
    return verify(out, [out.with_name("key.pub")], Checks(**checks)).splitlines()


@pytest.mark.long
def test_what_is_sealed_is_what_was_compiled_and_that_is_built_again(out: Path, warm: Any) -> None:
    folder = warm.out.parent
    materials = Materials(model=folder / "tiny.onnx", data=str(folder / "samples.npz"))
    assert checked(out, rebuild=materials, password=("env:OPENS",))[-3:] == [
        "sealed    holds the library of the provenance",
        "rebuilt   equal: load, fold, calibrate, quantize, compile, evaluate",
        "rebuilt   not compared: encrypt",
    ]
    assert not (out / "provenance.intoto.jsonl").stat().st_mode & 0o077
    with pytest.raises(SecretError):
        checked(out, password=("env:OPENS_NOT",))


def test_another_library_in_the_seal_is_found(out: Path) -> None:
    statement = json.loads((out / "provenance.json").read_text())
    for item in statement["predicate"]["runDetails"]["byproducts"]:
        if item["name"] == "compile/model_library.so":
            item["digest"]["sha256"] = "0" * 64
    (out / "provenance.json").write_bytes(canonical_json(statement) + b"\n")
    delivery.sign(out, read_key([f"file:{out.with_name('key')}"]))
    checked(out)
    with pytest.raises(VerificationError, match="expected the library of its provenance sealed in it, 0000"):
        checked(out, password=("env:OPENS",))


def test_a_library_in_clear_has_nothing_to_open(finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENS", "correct horse")
    delivery.keygen(tmp_path / "key", "us")
    folder = Path(shutil.copytree(finished.out, tmp_path / "out"))
    delivery.sign(folder, read_key([f"file:{tmp_path / 'key'}"]))
    with pytest.raises(VerificationError, match="leave --password out"):
        checked(folder, password=("env:OPENS",))
