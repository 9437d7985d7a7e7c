"""Passes over files: results, history, checkpoints, resuming, and finding the wrong pass."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forge_pipeline.errors import ConfigError, ForgeError, ModelError
from forge_pipeline.passes.files import apply_to_file, bisect_file, listing, read_recipe
from forge_pipeline.passes.verification.verify import PassVerificationError
from tests.support.paths import ROOT

RECIPE = """
passes: [remove-identities, fold-constants, {repeat: [merge-scales, remove-dead]}]
imports: []
verify: {rtol: 1.0e-5, atol: 1.0e-6, samples: 4, seed: 0, dims: {}}
"""
BROKEN = """
from forge_pipeline.passes import PassRow, NoOptions
from forge_pipeline.passes.rewrite import RewriteRulePass

class BreakAdds(RewriteRulePass[NoOptions]):
    def pattern(self, op, x, y):
        return op.Add(x, y)
    def check(self, graph, x, y):
        return x != y
    def rewrite(self, op, x, y):
        return op.Add(x, x)

PASSES = {"break-adds": PassRow(module="broken_passes", attr="BreakAdds", group="mine", summary="wrong")}
METRICS = {"first": lambda want, got: float(got[0].reshape(-1)[0])}
"""


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def files(tmp_path: Path, model: Any) -> Path:
    constants = {"a": np.float32(2), "b": np.float32(3)}
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Mul", ["i", "a"], ["m"]),
        helper.make_node("Mul", ["m", "b"], ["n"]),
        helper.make_node("Add", ["n", "z"], ["y"]),
    ]
    onnx.save(model(nodes, {"x": [2, 3], "z": [2, 3]}, ["y"], constants), tmp_path / "model.onnx")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def test_a_recipe_gives_a_model_and_its_history(files: Path, operators: Any) -> None:
    recipe = read_recipe(files / "recipe.yaml")
    apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write)
    assert operators(onnx.load(files / "out.onnx")) == ["Mul", "Add"]
    history = json.loads((files / "out.passes.json").read_text())
    assert history["nodes"] == [4, 2]
    assert [(row["pass"], row["changes"]) for row in history["history"][:3]] == [
        ("remove-identities", 1),
        ("fold-constants", 0),
        ("merge-scales", 1),
    ]
    assert history["history"][0]["verification"]["verified"]
    assert history["overall"]["verified"]
    assert history["unverified"] == {}


def test_names_take_the_place_of_the_recipes_list(files: Path, operators: Any) -> None:
    recipe = read_recipe(files / "recipe.yaml", ["remove-identities"])
    apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write)
    assert operators(onnx.load(files / "out.onnx")) == ["Mul", "Mul", "Add"]


def test_a_run_resumes_from_its_last_checkpoint_and_gives_the_same_bytes(files: Path) -> None:
    recipe = read_recipe(files / "recipe.yaml")
    apply_to_file(recipe, files / "model.onnx", files / "whole.onnx", write=_write)
    apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write, checkpoints=True)
    folder = files / "out.checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["000.onnx", "001.onnx", "002.onnx", "state.json"]
    state = json.loads((folder / "state.json").read_text())
    from forge_pipeline.digest import digest_file

    state |= {"done": 1, "model": digest_file(folder / "000.onnx"), "history": state["history"][:1]}
    (folder / "state.json").write_text(json.dumps(state))
    outcome = apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write, resume=True)
    assert outcome.history[0].name == "fold-constants"
    resumed, whole = (json.loads((files / f"{name}.passes.json").read_text()) for name in ("out", "whole"))
    for row in (*resumed["history"], *whole["history"]):
        del row["milliseconds"]
    assert resumed == whole
    assert (files / "out.onnx").read_bytes() == (files / "whole.onnx").read_bytes()


def test_checkpoints_of_another_model_or_damaged_ones_are_refused(files: Path) -> None:
    recipe = read_recipe(files / "recipe.yaml")
    with pytest.raises(ConfigError, match="checkpoints of an earlier run"):
        apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write, resume=True)
    apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write, checkpoints=True)
    other = read_recipe(files / "recipe.yaml", ["remove-dead"])
    with pytest.raises(ConfigError, match="those of another model or another list"):
        apply_to_file(other, files / "model.onnx", files / "out.onnx", write=_write, resume=True)
    last = files / "out.checkpoints" / "002.onnx"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="a damaged checkpoint"):
        apply_to_file(recipe, files / "model.onnx", files / "out.onnx", write=_write, resume=True)


@pytest.fixture
def broken(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (files / "broken_passes.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(files)
    changed = RECIPE.replace("imports: []", "imports: [broken_passes]").replace("fold-constants", "break-adds")
    (files / "recipe.yaml").write_text(changed)
    return files


def test_a_wrong_pass_leaves_no_output_but_the_models_around_it(broken: Path, operators: Any) -> None:
    recipe = read_recipe(broken / "recipe.yaml")
    with pytest.raises(PassVerificationError, match="pass 'break-adds'"):
        apply_to_file(recipe, broken / "model.onnx", broken / "out.onnx", write=_write)
    assert not (broken / "out.onnx").exists()
    assert operators(onnx.load(broken / "out.failed" / "before.onnx")) == ["Mul", "Mul", "Add"]
    assert operators(onnx.load(broken / "out.failed" / "after.onnx")) == ["Mul", "Mul", "Add"]


def test_bisecting_names_the_wrong_pass_and_node(broken: Path) -> None:
    found = bisect_file(read_recipe(broken / "recipe.yaml"), broken / "model.onnx")
    assert found.startswith("pass 'break-adds', number 2 of 4 that changed something; the first value that differs")
    assert "'y'" in found
    assert "computed by Add" in found
    right = bisect_file(read_recipe(broken / "recipe.yaml", ["remove-identities"]), broken / "model.onnx")
    assert right == "all 1 applications of passes that changed something keep the outputs"


def test_reference_inputs_come_from_files(files: Path) -> None:
    np.savez(files / "in.npz", x=np.ones((2, 3), np.float32), z=np.ones((2, 3), np.float32))
    (files / "recipe.yaml").write_text(RECIPE + f"inputs: ['{files / 'in.npz'}']\n")
    apply_to_file(read_recipe(files / "recipe.yaml"), files / "model.onnx", files / "out.onnx", write=_write)
    assert json.loads((files / "out.passes.json").read_text())["overall"]["verified"]


def test_a_misspelt_section_or_group_is_refused(files: Path) -> None:
    (files / "recipe.yaml").write_text(RECIPE.replace("verify", "verfy"))
    with pytest.raises(ConfigError, match="did you mean 'verify'"):
        read_recipe(files / "recipe.yaml")
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        listing("liner")


def test_the_listing_names_every_pass_once() -> None:
    rows = listing()
    assert len({name for _, name, _ in rows}) == len(rows) > 30
    assert {group for group, _, _ in listing("linear")} == {"linear"}


def test_the_documentations_wrong_pass_is_caught_as_it_says(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "passes.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    recipe = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[-1]
    (files / "my_passes.py").write_text(code)
    (files / "recipe.yaml").write_text(recipe)
    monkeypatch.syspath_prepend(files)
    with pytest.raises(PassVerificationError) as caught:
        apply_to_file(read_recipe(files / "recipe.yaml"), files / "model.onnx", files / "out.onnx", write=_write)
    said = str(caught.value).split("output 'y' differs by")[0]
    assert said in " ".join(page.split())
    assert "computed by Add" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_model_that_is_missing_or_damaged_is_refused(content: bytes | None, files: Path) -> None:
    source = files / "other.onnx"
    if content is not None:
        source.write_bytes(content)
    recipe = read_recipe(files / "recipe.yaml")
    with pytest.raises(ForgeError):
        apply_to_file(recipe, source, files / "out.onnx", write=_write)
    with pytest.raises(ForgeError):
        bisect_file(recipe, source)
    assert not (files / "out.onnx").exists()


DATA = """
data:
  {path: DATA, eval_path: null, calibration_samples: 8, shuffle: false, seed: 0, scale: 2.0, offset: 0.0, image: null}
"""


def test_reference_inputs_and_labels_come_from_calibration_data(files: Path, model: Any) -> None:
    from forge_pipeline.pipeline.model_commands import apply_passes

    onnx.save(model([helper.make_node("Softmax", ["x"], ["y"])], {"x": ["n", 3]}, ["y"]), files / "net.onnx")
    np.savez(files / "data.npz", x=np.eye(3, dtype=np.float32)[[0, 1, 2, 1, 0, 2, 1, 0]], y=[0, 1, 2, 1, 0, 2, 1, 0])
    how = "{how: metric, metric: top1, minimum: 1.0, against: labels}"
    listed = RECIPE.replace("remove-identities, ", f"infer-shapes: {{verify: {how}}}}}, {{", 1)
    recipe = f"passes: [{{infer-shapes: {{verify: {how}}}}}]\n" + "\n".join(listed.splitlines()[2:])
    (files / "recipe.yaml").write_text(recipe + DATA.replace("DATA", str(files / "data.npz")))
    names: tuple[str, ...] = ()
    apply_passes(
        files / "net.onnx", files / "o.onnx", names, config=files / "recipe.yaml", checkpoints=False, resume=False
    )
    history = json.loads((files / "o.passes.json").read_text())
    assert history["overall"]["verified"]
    both = (files / "recipe.yaml").read_text() + f"inputs: ['{files / 'in.npz'}']\n"
    (files / "recipe.yaml").write_text(both)
    with pytest.raises(ConfigError, match="both `inputs` and `data`"):
        apply_passes(
            files / "net.onnx", files / "p.onnx", names, config=files / "recipe.yaml", checkpoints=False, resume=False
        )


def test_the_listing_has_the_passes_of_imported_modules(broken: Path) -> None:
    from forge_pipeline.pipeline.model_commands import list_passes

    assert "break-adds" in list_passes(None, config=broken / "recipe.yaml")
    assert "break-adds" not in list_passes(None)
    assert "break-adds" in list_passes("mine", config=broken / "recipe.yaml")


def test_the_history_says_which_operators_came_and_went(files: Path) -> None:
    apply_to_file(read_recipe(files / "recipe.yaml"), files / "model.onnx", files / "out.onnx", write=_write)
    rows = json.loads((files / "out.passes.json").read_text())["history"]
    assert rows[0]["operators"] == {"Identity": -1}
    assert "operators" not in rows[1]
    assert rows[3]["operators"] == {"Mul": -1}


def test_a_model_that_is_too_large_for_memory_is_refused_before_it_is_read(files: Path) -> None:
    """The weights are a hole in a file: nothing may look at them."""
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1 << 29])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="hole")
    with (files / "hole").open("wb") as stream:
        stream.truncate(1 << 31)
    model = onnx.load(files / "model.onnx")
    model.graph.initializer.append(weight)
    (files / "large.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as refusal:
        apply_to_file(read_recipe(files / "recipe.yaml"), files / "large.onnx", files / "out.onnx", write=_write)
    assert refusal.value.found == f"{1 << 31} bytes"
    assert refusal.value.expected == f"weights of at most {1 << 30} bytes, which `passes` has in memory"
    assert not (files / "out.onnx").exists()
