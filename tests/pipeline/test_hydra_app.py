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

from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.build import build
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


@pytest.mark.parametrize(
    ("argument", "fix"),
    [
        ("net.onnx", "give model.path=net.onnx"),
        ("models/net (1).tflite", "give 'model.path=models/net (1).tflite'"),
        ("samples.npz", "give data.path=samples.npz"),
        ("a/folder", "give model.path=a/folder"),
        ("raspberry-pi/5", "give target=raspberry-pi/5"),
        ("target", "give target=NAME: `forge-pipeline targets` lists them"),
        ("quantize", "give quantize=NAME: one of any, dynamic, float16, none, static, weights"),
        ("else", "name the option that it is for; `forge-pipeline run --cfg job` prints all options"),
    ],
)
def test_an_argument_without_a_key_is_refused_with_the_option_it_is_for(
    argument: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/folder").mkdir(parents=True)
    for words in ([argument], ["-m", argument, "fold=basic"]):
        with pytest.raises(UsageError) as refusal:
            launch(words, lambda config, folder: None)
        assert (
            str(refusal.value) == f"{argument}: expected an option with its value: KEY=VALUE, found no `=`\nfix: {fix}"
        )


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("target=", "`forge-pipeline targets` lists them"),
        ("quantize=''", "choose one of those listed"),
        ("device=", "choose one of those listed, or describe the board in conf/device/NAME.yaml (docs/boards.md)"),
    ],
)
def test_an_empty_choice_is_refused_without_words_of_hydras(override: str, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        compose([override])
    assert (refusal.value.found, refusal.value.fix) == ("an empty one", fix)


def test_a_board_that_nobody_described_is_to_be_described() -> None:
    with pytest.raises(UsageError, match=r"describe the board in conf/device/pi-lab-3\.yaml \(docs/boards\.md\)"):
        compose(["device=pi-lab-3"])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("model.path", "a model file"),
        ("data.path", "a file name"),
        ("data.eval_path", "a file name"),
        ("store.path", "a folder"),
    ],
)
def test_an_empty_path_is_refused(option: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["experiment=digits", f"{option}="])
    with pytest.raises(ConfigError) as refusal:
        build(config | {"out": str(tmp_path / "out")})
    assert (refusal.value.where, refusal.value.expected, refusal.value.found) == (option, expected, "an empty path")
    assert list(tmp_path.iterdir()) == []


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
