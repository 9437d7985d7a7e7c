"""keygen, sign and verify on a real delivery, and what somebody could change in it afterwards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.crypto.signing import read_key, read_trusted
from forge_pipeline.errors import ArtifactError, ConfigError, ForgeError, UntrustedError
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.verify.checks import Checks, verify
from forge_runtime.engine import Engine


@pytest.fixture
def key(tmp_path: Path) -> Path:
    delivery.keygen(tmp_path / "key", "the release team")
    return tmp_path / "key"


@pytest.fixture
def out(finished: Any, key: Path, tmp_path: Path) -> Path:
    """Return a folder that a build delivered to, signed."""
    folder = Path(shutil.copytree(finished.out, tmp_path / "out"))
    delivery.sign(folder, read_key([f"file:{key}"]))
    return folder


def verified(path: Path, key: Path) -> str:
    return "\n".join(delivery.verify(path, read_trusted([key.with_name(f"{key.name}.pub")])).lines)


def test_a_signed_delivery_is_verified(out: Path, key: Path) -> None:
    lines = verified(out, key).splitlines()
    assert {line.split()[0] for line in lines} == {
        path.name for path in out.iterdir() if path.suffix not in (".sig", ".jsonl")
    }
    assert next(line for line in lines if line.startswith("model_library.so ")).endswith("the release team")
    assert "the release team" in verified(out / "model_library.so", key)
    Engine(out / "model_library.so", trusted=[key.with_name("key.pub")])


def _swap(folder: Path) -> None:
    (folder / "metadata.json").unlink()
    (folder / "metadata.json").write_text("{}")


def _strip(folder: Path) -> None:
    (folder / "model_library.so.sig").unlink()


def _rewrite(folder: Path) -> None:
    """Change a file, and the manifest to fit."""
    from forge_pipeline.digest import digest_file

    _swap(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for stage in manifest["stages"]:
        if stage["stage"] == "encrypt":
            stage["outputs"]["metadata.json"] = digest_file(folder / "metadata.json")
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _add(folder: Path) -> None:
    (folder / "model").write_bytes(b"a program that nobody built")


def _remove(folder: Path) -> None:
    (folder / "metadata.json").unlink()


def _hide(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _link(folder: Path) -> None:
    (folder / "model_library.so").unlink()
    (folder / "model_library.so").symlink_to("/dev/zero")


def _fill(folder: Path) -> None:
    (folder / "manifest.json.sig").unlink()
    os.mkfifo(folder / "manifest.json.sig")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_swap, ArtifactError),
        (_strip, UntrustedError),
        (_rewrite, UntrustedError),
        (_add, ArtifactError),
        (_remove, ArtifactError),
        (_hide, ForgeError),
        (_link, ArtifactError),
        (_fill, ArtifactError),
    ],
)
def test_a_changed_delivery_is_refused(
    out: Path, key: Path, change: Callable[[Path], None], error: type[ForgeError]
) -> None:
    change(out)
    with pytest.raises(error):
        verified(out, key)


def test_a_file_of_another_signed_build_is_refused(out: Path, key: Path) -> None:
    """Each is signed by the right key: together they are no build."""
    (out / "model_library.so").chmod(0o600)
    (out / "model_library.so").write_bytes(b"an older library")
    delivery.sign(out / "model_library.so", read_key([f"file:{key}"]))
    with pytest.raises(ArtifactError, match="expected the file of this build"):
        verified(out, key)


def test_a_bill_of_materials_of_another_signed_build_is_refused(out: Path, key: Path) -> None:
    bill = json.loads((out / "bom.cdx.json").read_text())
    for wrong in ("0" * 64, None):
        bill["metadata"]["component"]["hashes"] = [] if wrong is None else [{"alg": "SHA-256", "content": wrong}]
        (out / "bom.cdx.json").write_text(json.dumps(bill))
        delivery.sign(out / "bom.cdx.json", read_key([f"file:{key}"]))
        with pytest.raises(ArtifactError, match=r"bom\.cdx\.json: expected (the|a) bill of materials of"):
            verified(out, key)


def test_another_keys_delivery_is_refused(out: Path, tmp_path: Path) -> None:
    delivery.keygen(tmp_path / "other", "")
    with pytest.raises(UntrustedError, match="a signature of ssh-ed25519"):
        verified(out, tmp_path / "other")


def test_the_commands(forge: Any, out: Path, tmp_path: Path) -> None:
    assert forge("keygen", str(tmp_path / "mine"), "--comment", "me").stdout.startswith("ssh-ed25519 AAAA")
    sign = ("sign", str(out / "metadata.json"), "--key")
    assert forge(*sign, f"file:{tmp_path / 'mine'}").returncode == 0
    done = forge("verify", str(out / "metadata.json"), "--trusted", str(tmp_path / "mine.pub"))
    assert (done.returncode, done.stdout.split()[-1]) == (0, "me")
    done = forge("verify", str(out), "--trusted", str(tmp_path / "mine.pub"))
    assert (done.returncode, done.stdout) == (1, "") and "expected one that a trusted key signed" in done.stderr
    done = forge(*sign, "hunter2")
    assert done.returncode == 1 and "hunter2" not in done.stderr


def test_trusted_keys_are_needed(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        verify(out, [tmp_path / "missing"], Checks())


def test_a_build_signs_what_it_delivers_and_leaves_no_older_signature(
    forge: Any, warm: Any, key: Path, tmp_path: Path
) -> None:
    folder, out = warm.out.parent, tmp_path / "signed"
    build = (
        f"model.path={folder / 'tiny.onnx'}",
        f"data.path={folder / 'samples.npz'}",
        "quantize=static",
        f"out={out}",
    )
    done = forge("run", *build, "sign=key", env={"FORGE_SIGNING_KEY": key.read_text()})
    assert done.returncode == 0, done.stderr
    assert "the release team" in verified(out, key)
    assert forge("run", *build).returncode == 0
    assert [path.name for path in out.iterdir() if path.suffix in (".sig", ".jsonl")] == []
    done = forge("run", *build, "sign=key", "sign.key=[file:missing]", f"out={tmp_path / 'other'}")
    assert done.returncode == 1 and "file:missing" in done.stderr and not (tmp_path / "other").exists()
    done = forge("run", *build, "sign.key=[hunter2]")
    assert done.returncode == 1 and "hunter2" not in done.stderr and "sign.key" in done.stderr


def test_a_link_out_of_the_folder_is_refused_and_one_within_it_is_not(out: Path, key: Path, tmp_path: Path) -> None:
    """What a link leads to may be exchanged by others between the check and the use."""
    library = out / "model_library.so"
    elsewhere = tmp_path / "elsewhere"
    library.rename(elsewhere)
    library.symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match="expected a file in the folder, found a link that leads out of it"):
        verified(out, key)
    library.unlink()
    (out / "data").mkdir()
    elsewhere.rename(out / "data" / "library")
    library.symlink_to("data/library")
    assert "data               not of the build, and not checked" in verified(out, key)


def test_what_no_build_delivers_is_named(out: Path, key: Path) -> None:
    (out / "libextra.so").write_bytes(b"anything")
    (line,) = (line for line in verified(out, key).splitlines() if line.startswith("libextra.so"))
    assert line.endswith("not of the build, and not checked")


def test_metrics_of_another_signed_build_are_refused(out: Path, key: Path) -> None:
    """The same library, evaluated on kinder samples: manifest and metrics of one build, provenance of the other."""
    from forge_pipeline.digest import digest_file

    metrics = json.loads((out / "metrics.json").read_text()) | {"compiled": 100.0}
    (out / "metrics.json").unlink()
    (out / "metrics.json").write_text(json.dumps(metrics))
    manifest = json.loads((out / "manifest.json").read_text())
    for stage in manifest["stages"]:
        if stage["stage"] == "evaluate":
            stage["outputs"]["metrics.json"] = digest_file(out / "metrics.json")
    (out / "manifest.json").write_text(json.dumps(manifest))
    delivery.sign(out / "manifest.json", read_key([f"file:{key}"]))
    with pytest.raises(ArtifactError, match="expected the provenance of this build, found that of another"):
        verified(out, key)
