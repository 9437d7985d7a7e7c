"""forge-pipeline bench: rows for what was run, as a table, as JSON and as a picture; refusals in words."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest

from forge_pipeline.cli import main
from forge_pipeline.content import in_memory
from forge_pipeline.crypto.envelope import seal
from forge_pipeline.locate import conf_dir
from forge_pipeline.runners.samples import CHUNK, QUICK
from forge_pipeline.runtime.variants import combine
from forge_pipeline.target import Target
from forge_runtime.secret import Secret
from tests.support.decoders import decoder, kept
from tests.support.native import convolutions, library_of, open_sizes
from tests.support.sshd import serving


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bench")
    onnx.save(convolutions(), folder / "model.onnx")
    (folder / "model_library.so").write_bytes(library_of(convolutions()).to_bytes())
    return folder / "model_library.so", folder / "model.onnx"


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    def bench(*words: object) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["bench", *map(str, words), "--runs", "5", "--rounds", "2"])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return bench


def test_everything_is_measured_in_turn(
    bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path], tmp_path: Path
) -> None:
    library, model = files
    picture = tmp_path / "latency.svg"
    words = ("--against", model, "--size", "n=2", "--threads", 2, "--profile", "--json", "--svg", picture)
    code, out, err = bench(library, *words)
    assert (code or 0, err) == (0, "")
    found = json.loads(out)
    own, other = found["rows"].values()
    for row in (own, other):
        assert 0 < row["least_ms"] <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["a_second"] > 0
    assert own["peak_kib"] > 0
    assert own["open_ms"] > 0
    assert all(kernel["calls"] >= 5 and kernel["milliseconds"] >= 0 for kernel in own["kernels"])
    assert len(own["kernels"]) > 1
    drawn = ElementTree.fromstring(picture.read_text())
    assert len([each for each in drawn.iter() if each.get("class") == "median"]) == 2


def test_a_table_has_a_line_for_each(bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path]) -> None:
    code, out, _ = bench(files[0])
    assert code in (0, None)
    head, row, last = out.splitlines()
    assert head.split()[:4] == ["least", "ms", "p50", "ms"]
    assert row.split()[0] == str(files[0])
    assert last.startswith("times on 1 thread")


def test_of_a_library_for_several_cpus_the_variant_is_timed_that_this_one_opens(
    bench: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the variants are for x86-64")
    path = tmp_path / "model_library.so"
    made = [library_of(open_sizes(), f"x86-64/{level}") for level in ("v2", "v3")]
    identity = {"uuid": "6f0c4f6e-0000-4000-8000-000000000000", "fingerprint": "f" * 64, "tools": {}, "stage_key": ""}
    variants = [replace(library, metadata={**library.metadata, **identity}) for library in made]
    path.write_bytes(in_memory(combine(variants).file))
    code, out, err = bench(path, "--json", "--size", "n=2", "--size", "m=2")
    assert (code or 0, err, list(json.loads(out)["rows"])) == (0, "", [str(path)])
    code, _, err = bench(path, "--size", "nn=2")
    assert (code, "did you mean 'n'" in err) == (1, True)
    path.write_bytes(path.read_bytes()[:100] + b"x" + path.read_bytes()[101:])
    code, _, err = bench(path)
    assert (code, str(path) in err) == (1, True)


def test_libraries_in_clear_and_encrypted_are_measured_on_a_board(
    bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path], tmp_path: Path
) -> None:
    """By a configuration of one's own, through OpenSSH's own server."""
    conf, sealed = tmp_path / "conf", tmp_path / "sealed"
    shutil.copytree(conf_dir(), conf)
    sealed.mkdir()
    password = Secret(b"open sesame")
    content, key, _ = seal(
        files[0].read_bytes(), password, meta={"target": {"triple": Target.from_tag("host").triple}}, confirmable={},
        kdf=QUICK, chunk_bits=CHUNK, entropy=os.urandom,
    )  # fmt: skip
    (sealed / "model_library.so").write_bytes(in_memory(content))
    (sealed / "modelKey.bin").write_bytes(key)
    (tmp_path / "password").write_bytes(password.reveal() + b"\n")
    (tmp_path / "password").chmod(0o600)
    with serving(tmp_path) as server:
        (conf / "device" / "lab.yaml").write_text(json.dumps(asdict(server.device)))
        words = (files[0], sealed / "model_library.so", "--device", "lab", "--config-dir", conf, "--json")
        code, _, err = bench(*words)
        assert (code, "expected --password with an encrypted model" in err) == (1, True)
        code, out, err = bench(*words, "--password", f"file:{tmp_path / 'password'}")
        server.is_clean()
    assert (code or 0, err) == (0, "")
    plain, other = json.loads(out)["rows"].values()
    assert 0 < plain["least_ms"] <= plain["p99_ms"]
    assert other["peak_kib"] > plain["peak_kib"]  # what deriving the key takes


def test_what_is_no_library_is_refused(bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path]) -> None:
    for path in (files[1], files[1].parent / "nothing.so"):
        code, out, err = bench(path)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert "Traceback" not in err
    code, _, err = bench(files[0], "--device", "nowhere")
    assert code != 0
    assert "nowhere" in err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("foo=2", "--size: expected an open size: n, found foo"),
        ("=4", "--size: expected NAME=N, found --size =4"),
        ("n=two", "--size: expected NAME=N, found --size n=two"),
        ("n", "--size: expected NAME=N, found --size n"),
    ],
)
def test_a_size_that_is_none_is_refused(
    bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path], word: str, said: str
) -> None:
    for words in ((), ("--against", files[1])):
        code, out, err = bench(files[0], "--size", word, *words)
        assert (code, out, said in err) == (1, "", True), err


def test_each_library_is_told_of_the_sizes_that_it_has(
    bench: Callable[..., tuple[Any, str, str]], files: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(library_of(open_sizes()).to_bytes())
    code, out, err = bench(files[0], other, "--size", "s=3", "--size", "n=2", "--size", "m=2", "--json")
    assert (code or 0, err, len(json.loads(out)["rows"])) == (0, "", 2)


def test_a_prompt_and_a_token_behind_it_are_timed_of_what_keeps_states(
    bench: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "model_library.so"
    path.write_bytes(kept(decoder(layers=1)).to_bytes())
    code, out, err = bench(path, "--json", "--prompt", 7, "--profile")
    assert (code or 0, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert list(rows) == [f"{path}: 7 tokens", f"{path}: a token behind 7"]
    for row, tokens in zip(rows.values(), (7, 1), strict=True):
        assert 0 < row["least_ms"] <= row["p50_ms"]
        assert row["a_second"] > 0
        assert tokens == 1 or row["a_second"] > 1000 / row["p99_ms"]
        assert any("cached_attention" in kernel["name"] for kernel in row["kernels"])
    code, _, err = bench(path, "--prompt", 40)
    assert code == 1
    assert "at most 32 along its axis" in err
