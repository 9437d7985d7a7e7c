"""`compile.dump`: what each step of the lowering makes, for who debugs; the library does not depend on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.codegen.lowering import LOWERING
from forge_pipeline.errors import ConfigError
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.stage_configs import dump_folder, slices

LIBRARY = "model_library.so"


@pytest.mark.long
def test_a_dump_has_a_file_for_each_step_even_on_a_hit_and_changes_no_byte(
    forge: Any, model: Path, tmp_path: Path
) -> None:
    def compiled(out: str, *more: str) -> str:
        done = forge("run", f"model.path={model}", "quantize=none", f"out={tmp_path / out}", *more)
        assert done.returncode == 0, done.stderr
        stages = json.loads((tmp_path / out / "manifest.json").read_text())["stages"]
        return str(next(stage["result"] for stage in stages if stage["stage"] == "compile"))

    dump = tmp_path / "made" / "dump"
    results = [compiled("first"), compiled("dumped", f"compile.dump={dump}"), compiled("last")]
    assert results == ["built", "built", "hit"]
    assert len({(tmp_path / out / LIBRARY).read_bytes() for out in ("first", "dumped", "last")}) == 1
    expected = [f"{number:02}-{step.name}.txt" for number, step in enumerate(LOWERING, start=1)]
    assert sorted(path.name for path in dump.iterdir()) == expected
    assert all(path.stat().st_size for path in dump.iterdir())
    assert "R.nn.conv2d" in (dump / "01-import.txt").read_text()
    assert ".text" in next(dump.glob("*-code.txt")).read_text()


@pytest.mark.long
def test_a_dump_that_cannot_be_written_is_refused(forge: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dump = tmp_path / "file" / "dump"
    done = forge("run", f"model.path={model}", "quantize=none", f"out={tmp_path / 'out'}", f"compile.dump={dump}")
    assert done.returncode != 0
    assert f"compile.dump='{dump}': expected a folder that can be written, found 01-import.txt" in done.stderr
    assert not (tmp_path / "out" / LIBRARY).exists()


def test_a_dump_is_part_of_no_key() -> None:
    plain, dumped = (compose(["model=digits", *more]) for more in ([], ["compile.dump=somewhere"]))
    assert slices(plain) == slices(dumped)
    assert (dump_folder(plain), dump_folder(dumped)) == (None, Path("somewhere").absolute())


def test_a_dump_that_is_no_folder_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compile\.dump: expected a folder name, or null, found 3"):
        slices(compose(["model=digits", "compile.dump=3"]))
