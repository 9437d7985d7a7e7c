"""`forge-pipeline combine`, as users call it: deliveries of two builds, one library, plain and encrypted."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_runtime.engine import Engine

FAMILIES: dict[str, tuple[str, ...]] = {
    "x86_64": ("x86-64/v2", "x86-64/v3"),
    "aarch64": ("arm/generic", "raspberry-pi/5"),
}
TAGS = FAMILIES.get(platform.machine(), ())
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TAGS, reason="no CPUs of several levels are described for this machine"),
]


def test_two_deliveries_become_one(forge: Any, model: Path, tmp_path: Path) -> None:
    """What is made opens, names its variants, and is refused as a source."""
    for index, tag in enumerate(TAGS):
        done = forge("run", f"model.path={model}", f"target={tag}", "quantize=none", "encrypt=none", f"out={index}")
        assert done.returncode == 0, done.stderr
    done = forge("combine", "0", "1", "--out", "fat")
    assert done.returncode == 0, done.stderr
    fat = tmp_path / "work" / "fat"
    assert [target["tag"] for target in json.loads((fat / "metadata.json").read_text())["variants"]] == [*TAGS][::-1]
    x = np.linspace(0, 1, 432, dtype=np.float32).reshape(1, 3, 12, 12)
    plain = Engine(tmp_path / "work" / "0" / "model_library.so")(x)[0]
    np.testing.assert_array_equal(Engine(fat / "model_library.so", variant=TAGS[0])(x)[0], plain)

    done = forge("combine", "0", "1", "--out", "sealed", "--password", "env:SECRET", env={"SECRET": "correct horse"})
    assert done.returncode == 0, done.stderr
    sealed = tmp_path / "work" / "sealed"
    engine = Engine(sealed / "model_library.so", sealed / "modelKey.bin", "correct horse", variant=TAGS[0])
    np.testing.assert_array_equal(engine(x)[0], plain)

    for sources, found in (
        (("0",), "found 1"),
        (("0", "0"), "found two of"),
        (("0", "fat"), "one with variants"),
        (("0", "missing"), "a plain library"),
        (("0", "sealed"), "expected a model library"),
    ):
        done = forge("combine", *sources, "--out", "none")
        assert (done.returncode, found in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
        assert not (tmp_path / "work" / "none").exists()
    assert forge("keygen", "us").returncode == forge("keygen", "them").returncode == 0
    assert forge("sign", "0", "--key", "file:us").returncode == forge("sign", "1", "--key", "file:us").returncode == 0
    assert forge("combine", "0", "1", "--out", "signed", "--trusted", "us.pub").returncode == 0
    for keys, found in (("them.pub", "found a signature of ssh-ed25519"), ("us", "ssh-ed25519 AAAA... COMMENT")):
        done = forge("combine", "0", "1", "--out", "none", "--trusted", keys)
        assert (done.returncode, found in done.stderr) == (1, True), done.stderr
    (tmp_path / "work" / "1" / "model_library.so.sig").unlink()
    done = forge("combine", "0", "1", "--out", "none", "--trusted", "us.pub")
    assert (done.returncode, "found no signature beside it" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "work" / "none").exists()
    done = forge("combine", "0", "1", "--out", "0")
    assert (done.returncode, "a folder of its own" in done.stderr) == (1, True)
