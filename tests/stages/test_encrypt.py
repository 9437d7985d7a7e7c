from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
import yaml

from forge_pipeline.config import bind
from forge_pipeline.crypto import envelope, keyfile
from forge_pipeline.crypto.envelope import Sealed
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.errors import ConfigError, SecretError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.stages import encrypt
from forge_pipeline.stages.encrypt import Config
from forge_runtime.secret import Secret
from tests.support.paths import ROOT

CONF = ROOT / "conf" / "encrypt"
PASSWORD = Secret(b"correct horse")
CHEAP = Config(method="password", key_ref="test", chunk_kib=64, kdf=Kdf(memory_kib=19 << 10, passes=1, lanes=1))
PLAIN = Config(method="none", key_ref=None, chunk_kib=None, kdf=None)
METADATA: dict[str, Any] = {
    "format": 2,
    "uuid": "0" * 32,
    "stage_key": "5" * 64,
    "fingerprint": "f" * 64,
    "target": {"tag": "x86-64/v3", "kind": "llvm", "triple": "x86_64-linux-gnu", "cpu": "x86-64-v3"},
    "inputs": [{"name": "x", "dtype": "float32", "shape": [1, 8]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 4]}],
    "weights": [{"dtype": "float32", "shape": [12345], "offset": 0}],
    "tools": {"apache-tvm": "0.27.0.post1"},
    "quantization": {"secret sauce": 1},
    "compile": {"secret sauce": 2},
}


@pytest.fixture
def library() -> Library:
    return Library(elf=b"\x7fELF" + bytes(99), metadata=METADATA, weights=b"w" * 99)


def sealed(library: Library, seed: int = 0, config: Config = CHEAP) -> Sealed:
    output: Sealed = encrypt.run(config, library, PASSWORD, random.Random(seed).randbytes).output
    return output


def opened(artifact: Sealed) -> bytes:
    key, parts = artifact.key, []
    assert key is not None
    envelope.decrypt(
        io.BytesIO(artifact.model),
        len(artifact.model),
        lambda pair: keyfile.unwrap(key, PASSWORD, pair=pair),
        lambda part: parts.append(bytes(part)),
    )
    return b"".join(parts)


def from_conf(name: str) -> Config:
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert isinstance(values.pop("password"), list)
    return bind(Config, values, where="encrypt")


def test_the_payload_is_the_library_file_to_the_last_byte(library: Library) -> None:
    assert opened(sealed(library)) == library.to_bytes()


def test_what_is_delivered_depends_on_the_randomness_alone(library: Library) -> None:
    assert sealed(library, seed=1) == sealed(library, seed=1)
    assert sealed(library, seed=1).model != sealed(library, seed=2).model


def test_the_public_description_tells_the_interface_and_the_target_and_nothing_else(library: Library) -> None:
    artifact = sealed(library)
    public = json.loads(artifact.metadata)
    assert public.keys() == {
        *("format", "inputs", "outputs", "target", "tools"),
        *("uuid", "payload", "fingerprint", "stage_key"),
    }
    for name in ("format", "inputs", "outputs", "target", "tools"):
        assert public[name] == METADATA[name]
    for hidden in (b"f" * 64, b"5" * 64, b"12345", b"secret sauce"):
        assert hidden not in artifact.metadata + artifact.model


def test_the_public_description_repeats_what_the_header_authenticates(library: Library) -> None:
    artifact = sealed(library)
    header = json.loads(artifact.model[96:][: int.from_bytes(artifact.model[20:24], "big")])
    public = json.loads(artifact.metadata)
    assert header["target"] == {"tag": "x86-64/v3", "triple": "x86_64-linux-gnu"}
    assert {name: public[name] for name in header if name != "target"} == {
        name: value for name, value in header.items() if name != "target"
    }


def test_the_report_is_the_same_each_time_and_holds_no_secret(library: Library) -> None:
    reports = [encrypt.run(CHEAP, library, PASSWORD, random.Random(seed).randbytes).report for seed in (1, 2)]
    assert reports[0] == reports[1]
    assert "horse" not in repr(reports)


def test_without_encryption_the_library_is_delivered_as_it_is(library: Library) -> None:
    artifact = sealed(library, config=PLAIN)
    assert artifact == Sealed(model=library.to_bytes(), key=None, metadata=library.metadata_bytes())


@pytest.mark.parametrize("name", ["none", "password"])
def test_the_bundled_configurations_work(library: Library, name: str) -> None:
    artifact = sealed(library, config=from_conf(name))
    assert envelope.opens(artifact, PASSWORD)
    assert (artifact.key is None) is (name == "none")


def test_the_bundled_configuration_asks_for_the_documented_cost() -> None:
    assert from_conf("password").kdf == Kdf(memory_kib=65536, passes=3, lanes=4)
    assert from_conf("password").chunk_kib == 1024


def test_a_missing_password_is_refused(library: Library) -> None:
    with pytest.raises(SecretError, match="expected a password, found none"):
        encrypt.run(CHEAP, library, None, random.Random(0).randbytes)


def test_a_misspelt_method_gets_a_suggestion(library: Library) -> None:
    with pytest.raises(ConfigError) as refusal:
        sealed(library, config=replace(CHEAP, method="pasword"))
    assert str(refusal.value) == (
        "encrypt.method: expected a method of encryption: none, password, found 'pasword'"
        "\nfix: did you mean 'password'? choose one of those listed"
    )


@pytest.mark.parametrize("size", [0, 32, 63, 1000, 8192, -64])
def test_a_chunk_size_that_the_format_does_not_have_is_refused(library: Library, size: int) -> None:
    with pytest.raises(ConfigError, match=f"encrypt.chunk_kib: expected one of 64, 128, 256, .*, 4096, found {size}"):
        sealed(library, config=replace(CHEAP, chunk_kib=size))


def test_a_derivation_that_the_runtime_would_refuse_is_refused_at_once(library: Library) -> None:
    with pytest.raises(ConfigError, match=r"encrypt.kdf: .* found memory of 8 KiB"):
        sealed(library, config=replace(CHEAP, kdf=Kdf(memory_kib=8, passes=1, lanes=1)))


@pytest.mark.parametrize("name", ["key_ref", "chunk_kib", "kdf"])
def test_a_value_that_is_null_is_refused_for_the_method_password(library: Library, name: str) -> None:
    with pytest.raises(ConfigError, match="found null"):
        sealed(library, config=replace(CHEAP, **{name: None}))
