"""Overrides compose or are refused with the option that was probably meant; job folders say what is swept."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.errors import UsageError
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.hydra_app import PATH_KEYS, compose, launch, own_targets, quote_path
from forge_pipeline.target import describe_targets


def _launched(*arguments: str) -> list[tuple[dict[str, Any], str | None]]:
    jobs: list[tuple[dict[str, Any], str | None]] = []
    launch(arguments, lambda config, folder: jobs.append((config, folder)))
    return jobs


FILE_NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="$"), min_size=1
).filter(lambda name: name != "null" and name[0] not in "'\"")


@given(name=FILE_NAMES, key=st.sampled_from(PATH_KEYS))
def test_any_file_name_is_taken_as_it_is(name: str, key: str) -> None:
    override = OverridesParser.create().parse_override(quote_path(f"{key}={name}"))
    assert (override.key_or_group, override.value()) == (key, name)


def test_a_file_name_with_the_grammars_own_characters_reaches_the_configuration() -> None:
    ((config, _),) = _launched("model.path=a (1), {b}=c's [2].onnx")
    assert config["model"]["path"] == "a (1), {b}=c's [2].onnx"


def test_the_keys_that_hold_paths_exist() -> None:
    config = compose([])
    for key in PATH_KEYS:
        node: Any = config
        for part in key.split("."):
            assert part in node, key
            node = node[part]


def test_a_target_is_chosen_by_its_tag() -> None:
    assert compose(["target=raspberry-pi/5"])["target"]["tag"] == "raspberry-pi/5"


def test_an_experiment_chooses_model_data_quantization_and_encryption() -> None:
    config = compose(["experiment=digits"])
    assert config["model"]["path"].endswith("digits.onnx")
    assert (config["quantize"]["method"], config["encrypt"]["method"]) == ("static", "password")


@pytest.mark.long
def test_a_sweep_makes_one_job_per_combination_each_with_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = _launched("-m", "target=host,raspberry-pi/5", "quantize=static,none", "fold=basic", "jobs=1")
    assert [folder for _, folder in jobs] == [
        "host/quantize=static",
        "host/quantize=none",
        "raspberry-pi/5/quantize=static",
        "raspberry-pi/5/quantize=none",
    ]
    assert [config["quantize"]["method"] for config, _ in jobs] == ["static", "none"] * 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["quantize.per_chanel=false"], "did you mean 'quantize.per_channel'?"),
        (["quantiz=static"], "did you mean 'quantize'?"),
        (["target=raspberry-pi/6"], "did you mean 'raspberry-pi/5'?"),
        (["quantize=statik"], "did you mean 'static'?"),
        (["quantize=("], "Error parsing override"),
    ],
)
def test_a_misspelt_override_is_refused_with_what_was_probably_meant(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        compose(overrides)
    assert message in str(refusal.value)


def test_hydra_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before = list(sys.argv), dict(os.environ)
    _launched("target=host")
    with pytest.raises(UsageError):
        _launched("nothing=here")
    assert (sys.argv, dict(os.environ)) == before


def test_a_run_leaves_no_folders_of_hydras_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _launched("target=host")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "override",
    ["model.dims={batch: 1, rows: [2, 4]}", "compile.verify.dims={batch: 1}", "fold.verify.dims.batch=1"],
)
def test_extents_are_named_without_leave_to_add_a_key(override: str) -> None:
    """The keys of these options are the model's, so that none of them can be in a file of defaults."""
    key = override.partition("=")[0]
    found: list[dict[str, Any]] = []
    launch([override], lambda config, folder: found.append(config))
    launch(["--config-dir", "conf", override], lambda config, folder: found.append(config))
    for section in found:
        for part in key.removesuffix(".batch").split("."):
            section = section[part]  # noqa: PLW2901 - one level down
        assert section["batch"] == 1
    assert len(found) == 2


def test_targets_of_ones_own_are_listed_and_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is written out, and one that says only what differs from another."""
    known = yaml.safe_load((conf_dir() / "target/raspberry-pi/5.yaml").read_text())
    own = tmp_path / "conf/target/mine"
    own.mkdir(parents=True)
    (own / "board.yaml").write_text(yaml.safe_dump({**known, "tag": "mine/board"}))
    other = {"defaults": ["/target/raspberry-pi/5@_here_", "_self_"], "tag": "mine/other", "cores": 2}
    (own / "other.yaml").write_text(yaml.safe_dump(other))
    found = {target.tag: target for target in own_targets(tmp_path / "conf")}
    assert (found["mine/board"].cores, found["mine/other"].cores) == (4, 2)
    assert "mine/other" in describe_targets(found.values(), as_json=True)
    monkeypatch.chdir(tmp_path)
    assert own_targets(None) == []
    shutil.copy(conf_dir() / "config.yaml", "conf")
    shutil.copytree(conf_dir() / "target/amd", "conf/target/amd")  # this package's, to the byte: nobody's own
    assert {target.tag for target in own_targets(None)} == set(found)
    with pytest.raises(UsageError, match="did you mean 'mine/board'"):
        launch(["--config-dir", "conf", "target=mine/bord"], lambda config, folder: None)


def test_a_choice_of_the_folder_here_is_said_to_need_its_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text("# @package _global_\nmodel: {path: mine.onnx}\n")
    with pytest.raises(UsageError, match=r"found 'mine'\nfix: `--config-dir conf` takes"):
        launch(["experiment=mine"], lambda config, folder: None)
    found: list[Any] = []
    launch(["--config-dir", "conf", "experiment=mine"], lambda config, folder: found.append(config["model"]["path"]))
    assert found == ["mine.onnx"]
