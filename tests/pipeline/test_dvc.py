"""A real `dvc repro` in a fresh checkout: what runs, what does not, and what the reports show."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
import yaml

from forge_pipeline.runtime.bundle import Library
from tests.support.classifier import classifier
from tests.support.disclosed import pieces_in, weights_of
from tests.support.paths import ROOT

NEEDED = (
    "conf", "forge_pipeline", "hydra_plugins", "examples", "dvc.yaml", "params.yaml", "pyproject.toml", "README.md",
)  # fmt: skip
TARGETS = ["host", "raspberry-pi/5"]
Shell = Callable[..., str]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a committed copy of this project, two targets, a small model, built once with `dvc repro`."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (folder / "runtime").symlink_to(ROOT / "runtime")  # built once for all tests
    onnx.save(classifier(), folder / "examples" / "digits" / "digits.onnx")
    config = yaml.safe_load((folder / "conf" / "config.yaml").read_text())
    config["matrix"]["targets"] = TARGETS
    (folder / "conf" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    shell(folder, "git", "init", "-q")
    shell(folder, "dvc", "init", "-q")
    shell(folder, "dvc", "config", "core.analytics", "false")
    (folder / ".gitignore").write_text("/out/\n/.forge/\n__pycache__/\n")
    shell(folder, sys.executable, "-m", "forge_pipeline", "password", ".forge/password")
    shell(folder, sys.executable, "-m", "forge_pipeline", "stage", "resolve")
    commit(folder, "start")
    # A Hydra run first: what it built, DVC must not build again.
    out = folder.parent / "hydra"
    shell(folder, sys.executable, "-m", "forge_pipeline", "run", "experiment=digits", "target=host", f"out={out}")
    first = shell(folder, "dvc", "repro")
    commit(folder, "built")
    (folder / "first-repro.txt").write_text(first)
    yield folder
    shutil.rmtree(folder)


def shell(
    folder: Path,
    *command: str,
    store: str | None = ".forge/store",
    fails: bool = False,
    env: dict[str, str] | None = None,
) -> str:
    """Run in ``folder`` and return stdout, with stderr where it is to fail; else fail with everything it printed."""
    program = str(Path(sys.executable).with_name(command[0])) if command[0] == "dvc" else command[0]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("DVC", "GIT", "FORGE"))},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **({} if store is None else {"FORGE_STORE": str(folder / store)}),
        "FORGE_STORE_REMOTE": f"file://{folder.parent}/remote?sig=hunter2",
        "DVC_NO_ANALYTICS": "1",
        **(env or {}),
        **{f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr * fails


def commit(folder: Path, message: str) -> None:
    """Commit everything that git does not ignore."""
    shell(folder, "git", "add", "-A")
    shell(folder, "git", "commit", "-q", "-m", message)


def lines(output: str, result: str) -> set[str]:
    """Return the `stage target` labels of the lines that say ``result``."""
    rows = [line.split() for line in output.splitlines()]
    return {" ".join([row[0], *row[7:]]) for row in rows if len(row) >= 7 and row[1] == result}


def ran(output: str) -> set[str]:
    """Return the stages that DVC ran."""
    return {line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")}


def test_what_a_hydra_run_built_is_a_hit_for_dvc(checkout: Path) -> None:
    first = (checkout / "first-repro.txt").read_text()
    assert {"load", "fold", "calibrate", "quantize host", "compile host"} <= lines(first, "hit")
    assert "quantize raspberry-pi/5" not in lines(first, "built")  # one quantized model serves all targets
    assert lines(first, "built") == {"compile raspberry-pi/5", "evaluate raspberry-pi/5", "encrypt raspberry-pi/5"}


def test_what_dvc_built_is_delivered_with_its_provenance_and_signed_without_building(checkout: Path) -> None:
    """The very library in `out/raspberry-pi/5`: encrypted anew, it would be another one."""
    out, key = checkout.parent / "release", checkout.parent / "release.key"
    shell(checkout, sys.executable, "-m", "forge_pipeline", "keygen", str(key))
    chosen = ("experiment=digits", "target=raspberry-pi/5", "sign=key", f"sign.key=[file:{key}]", f"out={out}")
    said = shell(checkout, sys.executable, "-m", "forge_pipeline", "run", *chosen)
    assert lines(said, "built") == set() and "encrypt raspberry-pi/5" in lines(said, "hit")
    for name in ("model_library.so", "modelKey.bin", "metadata.json"):
        assert (out / name).read_bytes() == (checkout / "out" / "raspberry-pi" / "5" / name).read_bytes()
    checked = ("verify", str(out), "--trusted", f"{key}.pub", "--password", "file:.forge/password")
    assert "provenance.json" in shell(checkout, sys.executable, "-m", "forge_pipeline", *checked)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gets_its_sealed_library_key_metadata_and_metrics(checkout: Path, target: str) -> None:
    out = checkout / "out" / target
    assert (out / "model_library.so").read_bytes().startswith(b"\x89MLENC")
    assert (out / "modelKey.bin").stat().st_size == 164
    assert json.loads((out / "metadata.json").read_text())["target"]["tag"] == target
    assert json.loads((out / "metrics.json").read_text())
    assert (checkout / "out" / "report.html").stat().st_size > 1000


def test_only_what_is_sealed_is_sent_to_a_remote(checkout: Path) -> None:
    records = list((checkout.parent / "remote?sig=hunter2" / "actions").rglob("*/*/*"))
    stages = [json.loads(path.read_bytes().splitlines()[0])["report"]["stage"] for path in records]
    assert stages == ["encrypt"] * len(TARGETS)


def test_the_remote_is_in_no_file_that_is_committed(checkout: Path) -> None:
    assert "remote:" not in (checkout / "resolved" / "inputs.yaml").read_text()
    for path in (checkout / "resolved").rglob("*.yaml"):
        assert "hunter2" not in path.read_text()


def test_what_lies_between_the_stages_is_for_its_owner_alone(checkout: Path) -> None:
    for name in ("plain", "shared"):
        folder = checkout / "out" / name
        paths = [folder, *folder.rglob("*")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600, 0o400}
    assert {path.stat().st_nlink for path in (checkout / "out").rglob("*") if path.is_file()} == {1}


def test_a_second_repro_runs_nothing(checkout: Path) -> None:
    output = shell(checkout, "dvc", "repro")
    assert ran(output) == set()
    assert "up to date" in output


@pytest.mark.long
def test_an_edit_of_one_target_reruns_its_stages_alone(checkout: Path) -> None:
    compile_options = checkout / "conf" / "target" / "raspberry-pi" / "5.yaml"
    text = compile_options.read_text()
    compile_options.write_text(text.replace("l2_kib: 512", "l2_kib: 1024"))
    try:
        output = shell(checkout, "dvc", "repro")
        assert ran(output) == {
            "resolve",
            *(f"{name}@raspberry-pi/5" for name in ("compile", "evaluate", "encrypt")),
            "report",
        }
        changed = shell(checkout, "git", "diff", "--name-only", "resolved").split()
        assert changed == ["resolved/raspberry-pi/5/compile.yaml"]
    finally:
        compile_options.write_text(text)


def test_a_comment_in_a_target_reruns_resolve_alone(checkout: Path) -> None:
    shell(checkout, "dvc", "repro")
    path = checkout / "conf" / "target" / "raspberry-pi" / "5.yaml"
    path.write_text(path.read_text() + "# a comment\n")
    assert ran(shell(checkout, "dvc", "repro")) == {"resolve"}


def test_a_damaged_or_missing_deliverable_is_delivered_again_after_resolve(checkout: Path) -> None:
    shell(checkout, "dvc", "repro")
    damaged, missing = (checkout / "out" / target / "model_library.so" for target in TARGETS)
    good = damaged.read_bytes(), missing.read_bytes()
    damaged.unlink()
    damaged.write_bytes(good[0][:-1])
    missing.unlink()
    (checkout / "out" / "report.html").unlink()
    shell(checkout, sys.executable, "-m", "forge_pipeline", "stage", "resolve")
    output = shell(checkout, "dvc", "repro")
    assert ran(output) == {"report", *(f"encrypt@{target}" for target in TARGETS)}
    assert lines(output, "built") == set()
    assert (damaged.read_bytes(), missing.read_bytes()) == good
    assert (checkout / "out" / "report.html").is_file()


@pytest.mark.long
def test_another_clone_with_another_store_ends_with_the_same_lock_file(checkout: Path) -> None:
    """What is built in the clone has other salts, times and latencies, and other objects to take nothing from."""
    clone = checkout.parent / "elsewhere" / "clone"
    shell(checkout, "git", "clone", "-q", str(checkout), str(clone))
    (clone / ".forge").mkdir()
    shutil.copy(checkout / ".forge" / "password", clone / ".forge")
    shell(clone, sys.executable, "-m", "forge_pipeline", "stage", "resolve")
    output = shell(clone, "dvc", "repro", "encrypt@host")
    assert {"compile host", "evaluate host", "encrypt host"} <= lines(output, "built")
    assert shell(clone, "git", "status", "--porcelain") == ""
    assert ran(shell(clone, "dvc", "repro", "encrypt@host")) == set()
    libraries = {(folder / "out" / "host" / "model_library.so").read_bytes() for folder in (checkout, clone)}
    assert len(libraries) == 2


@pytest.mark.long
def test_with_a_sealed_store_nothing_is_in_clear_and_the_lock_file_is_the_same(checkout: Path) -> None:
    """All that `make repro` and DVC do: in the work tree, DVC's cache, the store and TMPDIR, only the model given."""
    shell(checkout, "dvc", "repro")
    shell(checkout, "git", "checkout", "-q", ".")
    place = checkout.parent / "sealed"
    clone = place / "clone"
    shell(checkout, "git", "clone", "-q", str(checkout), str(clone))
    (clone / ".forge").mkdir()
    shutil.copy(checkout / ".forge" / "password", clone / ".forge")
    (place / "tmp").mkdir()
    env = {"FORGE_STORE_KEY": "file:.forge/key", "TMPDIR": str(place / "tmp"), "FORGE_STORE_REMOTE": ""}
    shell(clone, "forge-pipeline", "password", ".forge/key")
    shell(clone, "forge-pipeline", "stage", "resolve", env=env)
    shell(clone, "forge-pipeline", "stage", "ahead", env=env)
    output = shell(clone, "dvc", "repro", env=env)
    assert lines(output, "built") == set() and "report" in ran(output)
    assert shell(clone, "git", "status", "--porcelain") == ""
    assert ran(shell(clone, "dvc", "repro", env=env)) == set()
    assert "up to date" in shell(clone, "dvc", "status", env=env)
    shell(clone, "dvc", "remote", "add", "--local", "-d", "away", str(place / "away"))
    assert "up to date" in shell(clone, "dvc", "push", env=env)
    assert "up to date" in shell(clone, "dvc", "pull", env=env)
    output = shell(clone, "dvc", "exp", "run", "--temp", "-S", "quantize.per_channel=false", "quantize", env=env)
    assert {"load", "fold"} <= lines(output, "hit") and "quantize host" in lines(output, "built")
    for secret in between_stages(checkout):
        assert pieces_in(checkout / ".forge" / "store", secret), "found where it is"
        assert set(pieces_in(place, secret)) <= {clone / "examples" / "digits" / "digits.onnx"}
    assert not list((place / "tmp").iterdir())
    refused = shell(clone, "dvc", "repro", "--force", "fold", fails=True, env={**env, "FORGE_STORE_KEY": ""})
    assert "expected the key that it is sealed with, found none" in refused


def between_stages(folder: Path) -> list[bytes]:
    """Return the weights of the model, as they are and quantized, and the library's code, from a store in clear."""
    found = {}
    for name, path in {"fold": "shared/fold", "quantize": "shared/quantize/host", "compile": "plain/host"}.items():
        outputs = json.loads((folder / "out" / path / f"{name}.action.json").read_text())["outputs"]
        digest = outputs["model_library.so" if name == "compile" else "model.onnx"]
        found[name] = folder / ".forge" / "store" / "objects" / digest[:2] / digest[2:]
    code = bytes(Library.from_file(found["compile"]).elf)  # with the weights, packed
    return [weights_of(found["fold"]), weights_of(found["quantize"]), code]


def test_the_readmes_program_runs_on_what_was_built(checkout: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    digit, tag = shell(checkout, sys.executable, "-c", program).split()
    assert (digit.isdigit(), tag) == (True, "host")


@pytest.mark.long
def test_what_was_built_ahead_several_targets_at_once_is_a_hit_for_dvc(checkout: Path) -> None:
    shutil.rmtree(checkout / ".forge" / "store")
    ahead = shell(checkout, "forge-pipeline", "stage", "ahead")
    assert lines(ahead, "built") >= {f"{stage} {target}" for target in TARGETS for stage in ("compile", "evaluate")}
    again = shell(checkout, "dvc", "repro", "--force")
    assert lines(again, "built") == set()
    assert lines(again, "hit") >= {"load", "fold", *(f"encrypt {target}" for target in TARGETS)}


@pytest.fixture
def committed(checkout: Path) -> Iterator[Path]:
    """Yield the checkout with its files as they were committed, and take all edits back."""
    shell(checkout, "git", "checkout", "-q", ".")
    yield checkout
    shell(checkout, "git", "checkout", "-q", ".")


def columns(folder: Path) -> list[str]:
    """Return the columns of `dvc exp show` that are no dependencies."""
    header = shell(folder, "dvc", "exp", "show", "--csv", "--drop", "(out|resolved)/").splitlines()[0]
    return header.split(",")


def test_an_experiment_sets_an_option_of_the_stage_that_reads_it(committed: Path) -> None:
    output = shell(committed, "dvc", "exp", "run", "-n", "coarse", "-S", "quantize.per_channel=false", "quantize")
    assert {"resolve", "quantize"} <= ran(output)
    assert "fold" not in ran(output)
    assert "quantize host" in lines(output, "built")
    resolved = yaml.safe_load((committed / "resolved" / "quantize.yaml").read_text())
    assert resolved["host"]["config"]["per_channel"] is False
    shell(committed, "git", "checkout", "-q", ".")  # an experiment is a commit: it is compared without its files
    assert changed_params(committed, "HEAD", "coarse") == {"quantize.per_channel": (True, False)}


def changed_params(folder: Path, *revisions: str) -> dict[str, tuple[object, object]]:
    """Return what `dvc params diff` says of params.yaml, which is all that it says."""
    changed = json.loads(shell(folder, "dvc", "params", "diff", *revisions, "--json"))
    assert set(changed) <= {"params.yaml"}
    return {name: (change["old"], change["new"]) for name, change in changed.get("params.yaml", {}).items()}


def test_parameters_are_compared_before_anything_runs(committed: Path) -> None:
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("per_channel: true", "per_channel: false"))
    assert changed_params(committed) == {"quantize.per_channel": (True, False)}


@pytest.mark.long
def test_an_experiment_in_a_copy_has_the_checkouts_store_and_password_and_is_compared(committed: Path) -> None:
    before = shell(committed, "git", "status", "--porcelain")
    experiment = ("dvc", "exp", "run", "--temp", "-n", "apart", "-S", "+evaluate.samples=100")
    output = shell(committed, *experiment, store=None)
    assert {"compile host", "compile raspberry-pi/5", "encrypt host"} <= lines(output, "hit")
    assert lines(output, "built") == {f"evaluate {target}" for target in TARGETS}
    assert shell(committed, "git", "status", "--porcelain") == before
    assert changed_params(committed, "HEAD", "apart") == {"evaluate.samples": (None, 100)}
    metrics = json.loads(shell(committed, "dvc", "metrics", "diff", "HEAD", "apart", "--json"))
    assert metrics["results/metrics.json"]["host.sqnr_db"]["diff"] != 0
    plots = json.loads(shell(committed, "dvc", "plots", "diff", "HEAD", "apart", "--json"))["data"]
    assert {name: plot["revisions"] for name, (plot,) in plots.items()} == {
        f"results/layers/{target.replace('/', '-')}.json": ["HEAD", "apart"] for target in TARGETS
    }
    shown = columns(committed)
    assert {"quantize.per_channel", "evaluate.samples", "host.sqnr_db", "host.latency_median_ms"} <= set(shown)
    assert len(shown) < 30 + 7 * len(TARGETS)


def test_an_edit_that_resolve_would_undo_is_refused(committed: Path) -> None:
    output = shell(
        committed, "dvc", "exp", "run", "-S", "resolved/quantize.yaml:host.config.per_channel=false", fails=True
    )
    assert "resolved/quantize.yaml: expected what `resolve` wrote, found an edit" in output
    assert "Traceback" not in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+quantize.per_chanel=false", "did you mean 'quantize.per_channel'?"),
        ("quantize=statik", "did you mean 'static'?"),
        ("+target=host", "set it in conf/config.yaml"),
        ("+quantise.per_channel=false", "did you mean 'quantize'?"),
    ],
)
def test_a_parameter_that_is_none_fails_the_experiment(committed: Path, override: str, said: str) -> None:
    output = shell(committed, "dvc", "exp", "run", "-S", override, fails=True)
    assert said in output
    assert "Traceback" not in output
    assert ran(output) == {"resolve"}


@pytest.mark.long
def test_a_latency_stays_as_it_was_measured_while_the_build_is_the_same(committed: Path) -> None:
    shell(committed, "dvc", "repro")
    measured = committed / "results" / "measured.json"
    before = json.loads(measured.read_text())
    before["host"]["metrics"]["latency_median_ms"] = 123.0
    measured.write_text(json.dumps(before, indent=1, sort_keys=True) + "\n")
    shell(committed, "dvc", "repro", "--force", "report")
    metrics = json.loads((committed / "results" / "metrics.json").read_text())
    assert metrics["host"]["latency_median_ms"] == 123.0
    before["host"]["action_key"] = "another"
    measured.write_text(json.dumps(before))
    shell(committed, "dvc", "repro", "--force", "report")
    metrics = json.loads((committed / "results" / "metrics.json").read_text())
    assert metrics["host"]["latency_median_ms"] < 123.0


@pytest.mark.long
def test_queued_experiments_run_in_copies_and_a_bad_one_fails_alone(committed: Path) -> None:
    for name, override in {"floats": "quantize=none", "wrong": "+quantize.nothing=1"}.items():
        shell(committed, "dvc", "exp", "run", "--queue", "-n", name, "-S", override)
    shell(committed, "dvc", "queue", "start")
    deadline = time.monotonic() + 300
    while {"Queued", "Running"} & set(status := shell(committed, "dvc", "queue", "status").split()):
        assert time.monotonic() < deadline, status
        time.sleep(2)
    assert status[status.index("floats") + 3 - len(status) :][0] == "Success"
    assert "Failed" in status
    metrics = json.loads(shell(committed, "dvc", "metrics", "diff", "HEAD", "floats", "--json"))
    assert "size_library_bytes" in json.dumps(metrics)
