"""A slice holds what a stage's output depends on: also the content of passes from elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.stage_configs import localized, slices


def test_a_pass_of_an_installed_package_enters_the_slice_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, metadata = tmp_path / "their_passes.py", tmp_path / "theirs-1.0.dist-info"
    module.write_text("first = 1\n")
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[forge_pipeline.passes]\ntheir-pass = their_passes:Pass\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    options = slices(compose(["fold=basic"]))["fold"]
    assert options["import_sources"] == []
    used = {**options, "passes": [{"repeat": ["their-pass", "remove-dead"]}]}
    assert localized("fold", used)["import_sources"] == [digest_file(module)]
    module.write_text("second = 2\n")
    assert localized("fold", used)["import_sources"] == [digest_file(module)]


def test_a_slice_is_the_same_when_it_is_localized_twice() -> None:
    portable = slices(compose(["experiment=digits", "target=x86-64/v3"]))
    for name, values in portable.items():
        once = localized(name, values)
        assert localized(name, once) == once


def test_any_method_is_static_with_data_and_dynamic_without() -> None:
    for data, method in ((["data=digits"], "static"), ([], "dynamic")):
        assert slices(compose(["model=digits", "quantize=any", *data]))["quantize"]["method"] == method


def test_one_quantized_model_serves_all_targets() -> None:
    targets = ["host", "x86-64/v2", "x86-64/v3", "intel/sapphire-rapids", "raspberry-pi/5"]
    options = [slices(compose(["experiment=digits", f"target={target}"]))["quantize"] for target in targets]
    assert all(values == options[0] for values in options)
    assert options[0]["reduce_range"] is False


@pytest.mark.parametrize(
    "choice",
    [
        ["target=apple/m1", "package=executable"],
        ["target=arm/cortex-m7", "package=executable"],
        ["target=arm/cortex-m7", "package=library"],
        ["target=apple/m1", "package=objects"],
        ["target=x86-64/v3", "package=objects", "encrypt=password"],
    ],
)
def test_a_package_that_a_target_cannot_have_is_refused_before_any_work(choice: list[str]) -> None:
    with pytest.raises((ConfigError, TargetError), match="package="):
        slices(compose(["experiment=digits", *choice]))
