"""target=auto becomes a tag before anything is composed: this machine's, or that of a board that is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.cli import main
from forge_pipeline.errors import UsageError
from forge_pipeline.pipeline.targets.auto_target import with_target
from forge_pipeline.runners.inquiry import machine_of
from forge_pipeline.target import Target
from forge_pipeline.target.host import this_machine
from tests.support.sshd import serving

HERE = Target.from_tag("host").description.rpartition(" ")[2]


def alone(words: Sequence[str]) -> dict[str, Any]:
    return {"device": {"name": None}}


def test_this_machine_is_named_in_lists_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert with_target(["model.path=auto", "target=host"], alone) == ["model.path=auto", "target=host"]
    assert capsys.readouterr().err == ""
    words = ["-m", "target=auto,raspberry-pi/5", "quantize=any"]
    assert with_target(words, alone) == ["-m", f"target={HERE},raspberry-pi/5", "quantize=any"]
    assert capsys.readouterr().err.startswith(f"target=auto: this machine is {HERE} (")


def test_one_target_is_not_found_for_two_boards() -> None:
    with pytest.raises(UsageError, match="expected one device, found device=a,b"):
        with_target(["-m", "target=auto", "device=a,b"], alone)


def test_a_build_for_it_is_one_for_the_tag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--cfg", "job", "target=auto"])
    written = capsys.readouterr().out
    assert f"tag: {HERE}\n" in written
    assert "auto\n" not in written.partition("target:")[2].partition("device:")[0]


def test_a_board_of_a_folder_of_ones_own_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "my conf"
    (conf / "device").mkdir(parents=True)
    with serving(tmp_path) as server:
        (conf / "device" / "lab.yaml").write_text(json.dumps(asdict(server.device)))
        with pytest.raises(SystemExit):
            main(["run", "--cfg", "job", "--config-dir", str(conf), "target=auto", "device=lab"])
        server.is_clean()
    said = capsys.readouterr()
    assert f"device lab is {HERE} (" in said.err
    assert f"tag: {HERE}\n" in said.out


def test_a_board_is_asked_for_its_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as server:
        here = this_machine()
        found = machine_of(server.device)
        assert (found.arch, found.ids, found.flags) == (here.arch, here.ids, here.flags)
        assert found.cores >= len(os.sched_getaffinity(0))
        asked = with_target(["device=lab", "target=auto"], lambda words: {"device": asdict(server.device)})
        server.is_clean()
    assert asked == ["device=lab", f"target={HERE}"]
    assert f"device lab is {HERE} (" in capsys.readouterr().err
