"""`forge-pipeline run` as users start it: what it delivers, what it reuses, and how it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.pipeline.hydra_app import launch
from tests.support.paths import ROOT
from tests.support.sums import assert_same_sums

HEAVY = ("tvm", "onnxruntime", "onnx", "torch", "dvc")
PLAIN = {
    "model_library.so",
    "metadata.json",
    "model.onnx",
    "metrics.json",
    "latency.json",
    "layers.json",
    "layers.svg",
    "manifest.json",
    "provenance.json",
    "bom.cdx.json",
}


def _results(out: Path) -> dict[str, str]:
    return {row["stage"]: row["result"] for row in json.loads((out / "manifest.json").read_text())["stages"]}


def _outputs(out: Path) -> dict[str, Any]:
    return {row["stage"]: row["outputs"] for row in json.loads((out / "manifest.json").read_text())["stages"]}


def _run(forge: Any, model: Path, data: Path, out: Path, *more: str, **options: Any) -> None:
    done = forge("run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={out}", *more, **options)
    assert done.returncode == 0, done.stderr


def test_a_run_delivers_a_library_that_computes_what_the_model_computes(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    import onnxruntime

    from forge_pipeline import Engine

    out = tmp_path / "out"
    _run(forge, model, data, out, "quantize=none")
    assert {path.name for path in out.iterdir()} == PLAIN
    x = np.load(data)["x"][:1]
    (expected,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    terms = 3 * 3 * 3 + 2 + 12 * 12 + 8  # of a convolution, a norm, a mean of all pixels and a product
    assert_same_sums(Engine(out / "model_library.so")(x)[0], expected, terms=terms)
    assert set(_results(out).values()) == {"built"}


@pytest.mark.usefixtures("warm")
def test_an_encrypted_run_delivers_a_sealed_library_its_key_and_the_quantized_model(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    from forge_pipeline import Engine

    out = tmp_path / "out"
    _run(forge, model, data, out, "encrypt=password", env={"FORGE_PASSWORD": "correct horse"})
    assert {path.name for path in out.iterdir()} == PLAIN | {"modelKey.bin", "ranges.svg"}
    onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(out / "model.onnx").graph.node}
    engine = Engine(out / "model_library.so", key=out / "modelKey.bin", password="correct horse")
    assert engine(np.load(data)["x"][:1])[0].shape == (1, 5)


@pytest.mark.usefixtures("warm")
def test_what_an_encrypted_build_leaves_in_clear_is_its_owners_alone_and_can_be_removed(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sealed = {"FORGE_PASSWORD": "correct horse"}
    _run(forge, model, data, out, "encrypt=password", env=sealed)
    shipped = {"model_library.so", "modelKey.bin", "metadata.json"}
    closed = {path.name for path in out.iterdir() if not path.stat().st_mode & 0o077}
    assert closed == (PLAIN | {"ranges.svg"}) - shipped
    assert forge("store", "gc", "--plaintext").returncode == 0
    left = [path.read_bytes() for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file()]
    assert (out / "model_library.so").read_bytes() in left
    assert not {(out / name).read_bytes() for name in closed} & set(left)
    assert forge("store", "ls").stdout.split()[0] == "encrypt" and len(left) == 4
    assert forge("store", "gc", "--plaintext", "--remote").returncode == 2


def test_a_second_run_is_all_hits_and_delivers_the_same_bytes(
    forge: Any, model: Path, data: Path, tmp_path: Path, warm: Any
) -> None:
    assert set(_results(warm.out).values()) == {"built"}
    _run(forge, model, data, tmp_path / "second")
    assert set(_results(tmp_path / "second").values()) == {"hit"}
    assert _outputs(warm.out) == _outputs(tmp_path / "second")
    for path in warm.out.iterdir():
        assert path.name == "manifest.json" or path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


@pytest.mark.usefixtures("warm")
def test_a_model_with_other_inner_names_is_loaded_again_and_nothing_else_is_built(
    forge: Any, model: Path, data: Path, tmp_path: Path, rename_inner: Any
) -> None:
    _run(forge, rename_inner(model), data, tmp_path / "second")
    assert {name for name, result in _results(tmp_path / "second").items() if result == "built"} == {"load"}


@pytest.mark.long
@pytest.mark.usefixtures("warm")
def test_samples_edited_in_place_are_calibrated_again(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    _run(forge, model, data, tmp_path / "first")
    before = data.stat()
    arrays = dict(np.load(data))
    np.savez(data, **{**arrays, "x": arrays["x"] * 2})
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    _run(forge, model, data, tmp_path / "second")
    results = _results(tmp_path / "second")
    assert (results["fold"], results["calibrate"], results["quantize"]) == ("hit", "built", "built")


@pytest.mark.usefixtures("warm")
def test_a_plain_run_over_an_encrypted_one_leaves_no_old_key_behind(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _run(forge, model, data, out, "encrypt=password", env={"FORGE_PASSWORD": "x"})
    _run(forge, model, data, out)
    assert {path.name for path in out.iterdir()} == PLAIN | {"ranges.svg"}


@pytest.mark.usefixtures("warm")
def test_another_password_seals_the_library_anew(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    for password, result in [("one", "built"), ("one", "hit"), ("two", "built")]:
        _run(forge, model, data, tmp_path / "out", "encrypt=password", env={"FORGE_PASSWORD": password})
        assert _results(tmp_path / "out")["encrypt"] == result


@pytest.mark.long
def test_a_sweep_builds_what_its_jobs_share_once(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(forge, model, data, out, "-m", "target=host,x86-64/v2", "quantize=static,none")
    jobs = [out / target / f"quantize={method}" for target in ("host", "x86-64/v2") for method in ("static", "none")]
    built = [[name for name, result in _results(job).items() if result == "built"] for job in jobs]
    assert sum("load" in names for names in built) == sum("fold" in names for names in built) == 1
    assert sum("calibrate" in names for names in built) == 1
    assert sum("compile" in names for names in built) == 4


@pytest.mark.long
def test_the_library_has_the_same_bytes_in_another_folder_and_with_the_store_off(
    forge: Any, model: Path, data: Path, tmp_path: Path, finished: Any
) -> None:
    folder = tmp_path / "over/there"
    folder.mkdir(parents=True)
    _run(forge, model, data, folder / "out", "store.enabled=false", cwd=folder)
    assert set(_results(folder / "out").values()) == {"built"}
    assert (folder / "out" / "model_library.so").read_bytes() == (finished.out / "model_library.so").read_bytes()


@pytest.fixture
def cached(forge: Any, model: Path, data: Path, tmp_path: Path, warm: Any) -> list[str]:
    """Return the arguments of a run whose every stage is in the store."""
    _run(forge, model, data, tmp_path / "out")
    return ["run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={tmp_path / 'out'}"]


def test_help_and_a_cached_run_import_nothing_heavy(cached: list[str], tmp_path: Path) -> None:
    for arguments in (["--help"], ["run", "--help"], cached):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "forge_pipeline", *arguments],
            env={**os.environ, "FORGE_STORE": str(tmp_path / "store")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        imported = {line.rsplit("|", 1)[-1].strip().partition(".")[0] for line in done.stderr.splitlines()}
        assert imported.isdisjoint(HEAVY), arguments


def _refused(done: subprocess.CompletedProcess[str], code: int, out: Path) -> str:
    assert done.returncode == code, done.stderr
    assert "error: " in done.stderr
    assert "expected" in done.stderr
    assert "found" in done.stderr
    assert "\nfix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists() or not any(out.iterdir())
    return done.stderr


@pytest.mark.every(10)
@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ("quantize.per_chanel=false", 2, "did you mean 'quantize.per_channel'?"),
        ("quantize=statik", 2, "did you mean 'static'?"),
        ("target=raspbery-pi/5", 2, "did you mean 'raspberry-pi/5'?"),
        ("quantize.per_channel=perhaps", 1, "quantize.per_channel"),
        ("model.path=/nowhere.onnx", 1, "nowhere.onnx"),
        ("data.path=/nowhere.npz", 1, "nowhere.npz"),
        ("+unknown.option=1", 1, "unknown"),
        ("quantize=[none,static]", 2, "found a list, whose files Hydra merges into one\nfix: build each by -m"),
        ("target=[host]", 1, "expected 2 to 16 CPUs, found 1"),
        ("target=host,x86-64/v2", 2, "found 'host,x86-64/v2' without -m\nfix: add -m"),
        ("model.inputs=[{name: x, shape: [1], dtype: float23}]", 1, "model.inputs[0].dtype: expected one of float16"),
        ("encrypt=password", 1, "FORGE_PASSWORD"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(
    forge: Any, model: Path, data: Path, tmp_path: Path, change: str, code: int, says: str
) -> None:
    out = tmp_path / "out"
    done = forge("run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={out}", change)
    assert says in _refused(done, code, out)
    assert done.stdout == ""


@pytest.mark.every(3)
@pytest.mark.parametrize("damage", ["empty", "truncated", "text"])
def test_a_damaged_model_is_refused(forge: Any, model: Path, data: Path, tmp_path: Path, damage: str) -> None:
    content = model.read_bytes()
    model.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "text": b"not a model\n"}[damage])
    out = tmp_path / "out"
    assert model.name in _refused(forge("run", f"model.path={model}", f"data.path={data}", f"out={out}"), 1, out)


def test_samples_of_the_wrong_shape_are_refused_by_input_and_shape(forge: Any, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", x=np.zeros((4, 3, 9, 9), np.float32))
    out = tmp_path / "out"
    done = forge("run", f"model.path={model}", f"data.path={tmp_path / 'wrong.npz'}", "quantize=static", f"out={out}")
    message = _refused(done, 1, out)
    assert "12" in message
    assert "9" in message


def test_a_folder_that_cannot_be_written_is_refused_by_name(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    out = tmp_path / "file" / "out"
    done = forge("run", f"model.path={model}", f"data.path={data}", f"out={out}")
    assert done.returncode == 1
    assert f"out={out}" in done.stderr


def test_a_full_disk_is_refused_and_leaves_nothing_partial(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    limited = f"ulimit -f 8; trap '' XFSZ; exec {sys.executable} -m forge_pipeline "  # 8 KiB a file, then EFBIG
    arguments = f"run model.path={model} data.path={data} out={tmp_path / 'out'}"
    done = subprocess.run(
        ["/bin/sh", "-c", limited + arguments],
        env={**os.environ, "FORGE_STORE": str(tmp_path / "store")},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    _refused(done, 1, tmp_path / "out")


def test_a_password_pasted_into_the_configuration_is_refused_and_repeated_nowhere(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = forge("run", f"model.path={model}", f"out={out}", "encrypt=password", "encrypt.password=[hunter2]")
    assert "hunter2" not in _refused(done, 1, out) + done.stdout


def _readme_commands(begin: str = "run ") -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [
        line
        for block in blocks
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith(f"forge-pipeline {begin}")
    ]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("compile.float_arithmetic=float8", 1),
        ("compile.opt_level=9", 1),
        ("model.dims={x: one}", 1),
        ("quantize=statik", 2),
        ("quantize.metod=static", 2),
    ],
)
def test_a_value_exits_with_one_and_an_unknown_option_or_choice_with_two(
    forge: Any, model: Path, tmp_path: Path, option: str, code: int
) -> None:
    out = tmp_path / "out"
    _refused(forge("run", f"model.path={model}", f"out={out}", option), code, out)


def test_of_a_sweep_too(forge: Any, model: Path, tmp_path: Path) -> None:
    for option, code in (("jobs=0", 1), ("jobs=two", 1), ("job=1", 2)):
        done = forge("run", "-m", f"model.path={model}", f"out={tmp_path / 'out'}", "fold=none,basic", option)
        _refused(done, code, tmp_path / "out")


@pytest.mark.usefixtures("warm")
def test_the_readmes_command_builds_a_users_own_model(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    command = next(command for command in _readme_commands() if "-m" not in command)
    (tmp_path / "work" / "net.onnx").write_bytes(model.read_bytes())
    (tmp_path / "work" / "samples.npz").write_bytes(data.read_bytes())
    done = forge(*command)
    assert done.returncode == 0, done.stderr
    (out,) = [argument.removeprefix("out=") for argument in command if argument.startswith("out=")]
    assert {path.name for path in (tmp_path / "work" / out).iterdir()} == PLAIN | {"ranges.svg"}
    assert forge("keygen", "KEY").returncode == 0
    for begin in ("card ", "sign ", "verify "):
        (command,) = _readme_commands(begin)
        done = forge(*command)
        assert (done.returncode, out in command) == (0, True), done.stderr


def test_the_readmes_sweep_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = next(command for command in _readme_commands() if "-m" in command)
    jobs: list[str | None] = []
    launch([*command[1:], "jobs=1"], lambda config, folder: jobs.append(folder))
    assert len(jobs) == 6


@pytest.mark.long
def test_a_sweep_delivers_the_good_jobs_and_names_every_bad_one(
    forge: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    good, out = model.with_name("good model (1).onnx"), tmp_path / "out"
    good.write_bytes(model.read_bytes())
    paths = f"model.path='{good}',{tmp_path}/missing.onnx,{tmp_path}/absent.onnx"
    done = forge("run", paths, f"out={out}", "fold=none", "-m", "target=x86-64/v2")
    assert done.returncode == 1
    assert "missing.onnx" in done.stderr
    assert "absent.onnx" in done.stderr
    assert "2 of 3 that failed" in done.stderr
    assert "Traceback" not in done.stderr
    (delivered,) = [path.parent for path in out.rglob("manifest.json")]
    assert {path.name for path in delivered.iterdir()} == PLAIN


@pytest.mark.long
def test_a_users_own_pass_that_was_edited_runs_again(forge: Any, model: Path, tmp_path: Path) -> None:
    module = tmp_path / "work" / "own_passes.py"
    results = []
    for comment in ("first", "first", "second"):
        module.write_text(f"# {comment}\nPASSES = {{}}\n")
        folder = str(module.parent)
        done = forge(
            "run", f"model.path={model}", "fold.imports=[own_passes]", "target=x86-64/v2", f"out={tmp_path / 'out'}",
            env={"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        results.append(_results(tmp_path / "out")["fold"])
    assert results == ["built", "hit", "built"]


@pytest.mark.usefixtures("warm")
def test_a_failed_delivery_leaves_the_earlier_build_whole(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(forge, model, data, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "modelKey.bin").mkdir()  # what no file can replace
    arguments = [f"model.path={model}", f"data.path={data}", "quantize=static", f"out={out}", "encrypt=password"]
    done = forge("run", *arguments, env={"FORGE_PASSWORD": "x"})
    assert done.returncode == 1
    assert f"out={out}" in done.stderr
    (out / "modelKey.bin").rmdir()
    assert {path.name for path in out.iterdir()} <= set(before)
