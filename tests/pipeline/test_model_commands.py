"""`forge-pipeline inspect` and `forge-pipeline passes`, as users call them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from forge_pipeline import load
from forge_pipeline.errors import ModelError


def test_inspect_tells_the_interface_and_draws_the_graph(forge: Any, model: Path, tmp_path: Path) -> None:
    done = forge("inspect", str(model), "--svg", str(tmp_path / "graph.svg"))
    assert done.returncode == 0, done.stderr
    assert "x: float32 [1, 3, 12, 12]" in done.stdout
    assert "<svg" in (tmp_path / "graph.svg").read_text()


def test_inspect_as_json_has_the_fingerprint_that_names_do_not_change(
    forge: Any, model: Path, rename_inner: Any
) -> None:
    first, second = (json.loads(forge("inspect", str(path), "--json").stdout) for path in (model, rename_inner(model)))
    assert first["fingerprint"] == second["fingerprint"]
    assert first["operators"]["Conv"] == 1


def test_applying_passes_writes_the_model_and_its_history(forge: Any, model: Path, tmp_path: Path) -> None:
    done = forge("passes", "apply", "-o", str(tmp_path / "new.onnx"), str(model), "fold-batchnorm")
    assert done.returncode == 0, done.stderr
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(tmp_path / "new.onnx").graph.node}
    assert json.loads((tmp_path / "new.passes.json").read_text())


def test_bisect_finds_nothing_in_sound_passes(forge: Any, model: Path) -> None:
    done = forge("passes", "bisect", str(model), "fold-batchnorm", "remove-dead")
    assert done.returncode == 0, done.stderr
    assert "keep the outputs" in done.stdout


def test_a_misspelt_pass_or_group_is_refused(forge: Any, model: Path, tmp_path: Path) -> None:
    done = forge("passes", "apply", "-o", str(tmp_path / "new.onnx"), str(model), "fold-bachnorm")
    assert (done.returncode, "did you mean 'fold-batchnorm'?" in done.stderr) == (1, True)
    assert not (tmp_path / "new.onnx").exists()
    done = forge("passes", "list", "fuson")
    assert (done.returncode, "did you mean 'fusion'?" in done.stderr) == (1, True)


def test_a_refusal_of_what_is_in_a_model_names_its_file(forge: Any, model: Path) -> None:
    """By every way in: the command line, a build and Python."""
    odd = onnx.load(model)
    odd.graph.node[0].op_type = "Frobnicate"
    onnx.save(odd, model)
    said = f"{model}: operators: expected operators of ONNX opset "
    for words in (["inspect", str(model)], ["run", f"model.path={model}", f"out={model.parent / 'out'}"]):
        done = forge(*words)
        assert (done.returncode, done.stderr.startswith(f"error: {said}")) == (1, True), done.stderr
    with pytest.raises(ModelError, match=re.escape(said)):
        load(model)
    assert not (model.parent / "out").exists()


def test_targets_are_listed_by_family_and_as_json(forge: Any) -> None:
    assert "raspberry-pi/5" in forge("targets").stdout
    assert "raspberry-pi/5" in json.dumps(json.loads(forge("targets", "--json").stdout))


def test_a_name_that_would_command_the_terminal_is_shown_without_its_control_characters(
    forge: Any, model: Path
) -> None:
    hostile = onnx.load(model)
    hostile.graph.input[0].name = hostile.graph.node[0].input[0] = "x\x1b[2J"
    onnx.save(hostile, model)
    done = forge("inspect", str(model))
    assert (done.returncode, "\x1b" in done.stdout, r"x\x1b[2J" in done.stdout) == (0, False, True)
