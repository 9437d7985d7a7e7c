"""A policy's rules on a real delivery: each is obeyed, or named with what was found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_pipeline.crypto.signing import read_key
from forge_pipeline.digest import canonical_json, digest_bytes, digest_file
from forge_pipeline.errors import ConfigError, UntrustedError, VerificationError
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.verify.checks import Checks, verify


@pytest.fixture
def out(finished: Any, tmp_path: Path) -> Path:
    """Return a delivery that is signed by the key `key`."""
    delivery.keygen(tmp_path / "key", "us")
    folder = Path(shutil.copytree(finished.out, tmp_path / "out"))
    delivery.sign(folder, read_key([f"file:{tmp_path / 'key'}"]))
    return folder


def checked(out: Path, **rules: Any) -> str:
    path = out.with_name("policy.yaml")
    path.write_text(yaml.safe_dump({"trusted": ["key.pub"], **rules}))
    return verify(out, [], Checks(policy=path)).splitlines()[-1]


def test_a_delivery_that_obeys_is_let_out(finished: Any, out: Path) -> None:
    model = digest_file(finished.out.parent / "tiny.onnx")
    tools = {"apache-tvm": ">=0.27,<0.28", "ziglang": "==0.17.*"}
    samples = [digest_file(finished.out.parent / "samples.npz")]
    rules = {
        "models": [model],
        "samples": samples,
        "metric": "top1",
        "minimum_accuracy": 10.0,
        "maximum_drop": 1.0,
        "fallbacks": False,
        "tools": tools,
    }
    assert checked(out, **rules) == "policy    obeyed"


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ({"models": ["0" * 64]}, r"models: built from [0-9a-f]{64}"),
        ({"minimum_accuracy": 99.5}, r"minimum_accuracy: 16\.\d+, not 99\.5"),
        ({"metric": "top5"}, "metric: top1, not top5"),
        ({"samples": ["0" * 64]}, r"samples: data\.path is [0-9a-f]{64}"),
        ({"maximum_drop": -1.0}, r"maximum_drop: 0\.0, not -1\.0"),
        ({"tools": {"ziglang": "<0.17"}}, r"tools\.ziglang: 0\.17\.0, not <0\.17"),
        ({"tools": {"gcc": ">1"}}, r"tools\.gcc: not used"),
        ({"models": ["0" * 64], "tools": {"gcc": ">1"}}, r"models: built from [0-9a-f]{64}; tools\.gcc: not used"),
    ],
)
def test_each_rule_refuses_by_name(out: Path, rules: dict[str, Any], found: str) -> None:
    with pytest.raises(VerificationError, match=rf"^policy: expected a delivery that obeys it, found {found}\n"):
        checked(out, **rules)


def test_a_revoked_key_is_not_trusted(out: Path) -> None:
    delivery.keygen(out.with_name("new"), "us, later")
    with pytest.raises(UntrustedError):
        checked(out, trusted=["key.pub", "new.pub"], revoked=["key.pub"])


def test_a_key_counts_until_its_last_day_and_its_revocation_always(out: Path) -> None:
    line = out.with_name("key.pub").read_text()
    out.with_name("old.pub").write_text(f'valid-before="20200101Z" {line}')
    out.with_name("dated.pub").write_text(f'valid-before="22000101Z" {line}')
    delivery.keygen(out.with_name("new"), "us, later")
    checked(out, trusted=["dated.pub", "new.pub"])
    with pytest.raises(UntrustedError):
        checked(out, trusted=["old.pub", "new.pub"])
    with pytest.raises(UntrustedError):
        checked(out, trusted=["dated.pub", "new.pub"], revoked=["old.pub"])


@pytest.mark.parametrize("text", ["trusted: [key.pub]\ntypo: 1", "[]", "a: [", "tools: {numpy: newest}", "\x00"])
def test_what_is_no_policy_is_refused(out: Path, text: str) -> None:
    path = out.with_name("policy.yaml")
    path.write_text(text)
    with pytest.raises(ConfigError):
        verify(out, [out.with_name("key.pub")], Checks(policy=path))


def test_the_command_needs_a_key_from_somewhere(forge: Any, out: Path) -> None:
    done = forge("verify", str(out))
    assert done.returncode == 1 and "expected at least one public key" in done.stderr
    checked(out)
    done = forge("verify", str(out), "--policy", str(out.with_name("policy.yaml")))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "policy    obeyed")


def test_metrics_that_are_exchanged_after_they_were_verified_are_not_believed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = delivery.verify

    def and_then_exchange(path: Path, trusted: dict[str, str]) -> delivery.Verified:
        found = whole(path, trusted)
        metrics = json.loads((path / "metrics.json").read_text()) | {"compiled": 100.0}
        (path / "metrics.json").unlink()
        (path / "metrics.json").write_text(json.dumps(metrics))
        return found

    monkeypatch.setattr(delivery, "verify", and_then_exchange)
    with pytest.raises(VerificationError, match=r"metrics\.json: another one than was measured"):
        checked(out, minimum_accuracy=99.5)


def test_an_error_is_not_taken_for_an_accuracy(out: Path) -> None:
    """By the mean error that a builder chose, of which less is better, a bad library reaches any number."""
    metrics = json.loads((out / "metrics.json").read_text()) | {"metric": "mae", "compiled": 1000.0}
    content = json.dumps(metrics).encode()
    (out / "metrics.json").unlink()
    (out / "metrics.json").write_bytes(content)
    provenance = json.loads((out / "provenance.json").read_text())
    manifest = json.loads((out / "manifest.json").read_text())
    for item in provenance["predicate"]["runDetails"]["byproducts"]:
        if item["name"] == "evaluate/metrics.json":
            item["digest"]["sha256"] = digest_bytes(content)
    for stage in manifest["stages"]:
        if stage["stage"] == "evaluate":
            stage["outputs"]["metrics.json"] = digest_bytes(content)
    (out / "provenance.json").write_bytes(canonical_json(provenance) + b"\n")
    (out / "manifest.json").write_text(json.dumps(manifest))
    delivery.sign(out, read_key([f"file:{out.with_name('key')}"]))
    with pytest.raises(VerificationError, match="measured by mae, of which less is better"):
        checked(out, minimum_accuracy=99.5)
