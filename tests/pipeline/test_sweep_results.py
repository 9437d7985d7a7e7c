"""What a real sweep leaves about its jobs, and what `forge-pipeline sweep show` says of deliveries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.errors import ArtifactError, ForgeError
from forge_pipeline.pipeline.sweep.results import PAGE, RESULTS, read_jobs, root_of, show, write

PLAIN = ["fold=none", "compile.verify.enabled=false", "evaluate.runner=none", "target=x86-64/v3", "jobs=1"]


@pytest.mark.parametrize(
    ("out", "tag", "expected"), [("runs/x86-64/v3", "x86-64/v3", "runs"), ("out", "host", "out"), ("host", "host", ".")]
)
def test_the_folder_of_a_sweep_is_that_of_all_its_jobs(out: str, tag: str, expected: str) -> None:
    assert root_of(Path(out), tag) == Path(expected)


def test_a_delivery_says_what_it_is(finished: Any) -> None:
    (found,) = read_jobs(finished.out)
    metrics = json.loads((finished.out / "metrics.json").read_text())
    assert (found.target, found.metric, found.library_bytes) == ("host", "top1", metrics["size_library_bytes"])
    assert found.options["quantize.method"] == "static"
    assert found.drop == pytest.approx(metrics["float"] - found.score)
    assert (found.built, found.hits) == (7, 0)


def test_a_sweep_sums_up_what_it_delivered_and_what_failed(forge: Any, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "swept"
    done = forge("run", "-m", f"model.path={model}", f"out={out}", *PLAIN, "compile.opt_level=3,33")
    assert done.returncode == 1, done.stderr
    assert f"sweep      {out / PAGE}" in done.stdout
    told = json.loads((out / RESULTS).read_text())
    assert [job["name"] for job in told["jobs"]] == ["x86-64/v3/compile.opt_level=3"]
    (failed,) = told["failures"]
    assert failed["job"] == "x86-64/v3/compile.opt_level=33"
    assert "opt_level" in failed["reason"]
    assert failed["job"] in (out / PAGE).read_text()
    shown = forge("sweep", "show", str(out), "--format", "json")
    assert json.loads(shown.stdout) == told


@pytest.mark.long
def test_a_dry_run_of_a_sweep_leaves_nothing(forge: Any, model: Path, tmp_path: Path) -> None:
    done = forge(
        "run", "-m", "--dry-run", f"model.path={model}", f"out={tmp_path / 'o'}", *PLAIN, "compile.opt_level=1,2"
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "o").exists()


def test_no_secret_of_a_url_is_written_down(tmp_path: Path) -> None:
    config = {"out": str(tmp_path), "target": {"tag": "host"}}
    write(config, [ForgeError("host/x=1: store.remote", "a remote", "https://me:hunter2@example.com/", "see it")])
    assert "example.com" in (tmp_path / RESULTS).read_text()
    assert not [path for path in tmp_path.iterdir() if "hunter2" in path.read_text()]


def test_a_folder_without_deliveries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a folder with deliveries below it, found none"):
        show(tmp_path, "table")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"predicate": 1}', None])
def test_a_damaged_delivery_is_named_and_left_out(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    for folder in ("whole", "damaged"):
        (tmp_path / folder).mkdir()
        for path in finished.out.iterdir():
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    provenance = tmp_path / "damaged" / "provenance.json"
    provenance.unlink() if content is None else provenance.write_text(content)
    assert [job.name for job in read_jobs(tmp_path)] == ["whole"]
    assert "left out: " in capsys.readouterr().err
    assert show(tmp_path, "csv").count("\n") == 1
