"""A secret, wherever it is put, is in no file that a run or a sweep writes, and in nothing that it prints."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.exits import SIGNALS
from tests.support.paths import ROOT

CANARY = "hunter2canary"
SPELLINGS = (
    "encrypt.password={}",
    "encrypt.password=[{}]",
    "encrypt.password=[env:FORGE_PASSWORD,{}]",
    "encrypt.password=a,{}",
    "encrypt.password=[{}],[prompt]",
    "encrypt.password=({}",
    "encrypt.password='{}",
    "encrypt.password={{{}:1}}",
    "encrypt.password='{}',",
    "encrypt.passwrd={}",
    "encrypt={}",
    "encrypt={{password:[{}]}}",
    "+encrypt.password={}",
    "++encrypt.password=[{}]",
    "~encrypt.password={}",
    "password={}",
    "--password={}",
    "encrypt.password=${{oc.env:CANARY}}",
    "encrypt.password=[${{oc.env:CANARY}}]",
    "encrypt.key_ref=${{oc.env:CANARY}}",
    "quantize.keep_float=[${{oc.env:CANARY}}]",
    "encrypt.password=glob({})",
    "sign.key=[{}]",
    "sign.key=['pkcs11:object=a?pin-value={}']",
    "sign.key=['pkcs11:object=a?pin-source={}']",
    "store.sign=['pkcs11:object=a;pin={}'],[env:A]",
    "sign={{key:['pkcs11:object=a?pin-value={}']}}",
    "store.unknown=ftp://me:{}@127.0.0.1:1/a",
    "compile.opt_level=${{oc.decode:${{oc.env:BRACED}}}}",
)
REMOTE = f"ftp://me:{CANARY}@127.0.0.1:1/cache?key={CANARY}"
ENVIRONMENT = {"CANARY": CANARY, "BRACED": f"{{{CANARY}"}


def files_with(needle: str, *folders: Path) -> list[Path]:
    """Return the files and folders whose name or content holds ``needle``."""
    found = [path for folder in folders for path in folder.rglob("*")]
    return [
        path
        for path in found
        if needle in path.name or (path.is_file() and not path.is_symlink() and needle.encode() in path.read_bytes())
    ]


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Undo what a program does to its signals when it ends: the processes that later tests start would inherit it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.every(10)
@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_on_the_command_line_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], spelling: str
) -> None:
    from forge_pipeline.cli import main

    temporary, work = tmp_path / "temporary", tmp_path / "work"
    temporary.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("FORGE_STORE", str(tmp_path / "store"))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    own = tmp_path / "own"
    own.mkdir()
    more = [["--config-dir", str(own)], ["-m", f"hydra.sweep.dir={work}"]] if "[{}]" in spelling else []
    for flags in ([], ["-m", "target=host,x86-64/v2"], *more):
        with pytest.raises(SystemExit) as end:
            main(["run", "experiment=digits", spelling.format(CANARY), *flags])
        said = capfd.readouterr()
        assert end.value.code in (1, 2), said
        assert CANARY not in said.out + said.err
        assert "fix: " in said.err
        assert "Traceback" not in said.err
        assert [path for path in tmp_path.rglob("*") if path not in (temporary, work, own)] == []


@pytest.mark.every(2)
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("flags", [[], ["-m", "encrypt.key_ref=one,two"]], ids=["run", "sweep"])
def test_no_file_of_a_build_holds_a_secret_that_was_given_where_it_may_be(
    forge: Any, model: Path, data: Path, tmp_path: Path, flags: list[str]
) -> None:
    places = tmp_path / "keyring"
    places.mkdir()
    (places / "keyring.py").write_text(
        "import os\n"
        "def get_password(service, name):\n"
        "    return os.environ['CANARY'] + ' of the keyring' if (service, name) == ('models', 'one') else None\n"
    )
    hidden = tmp_path / "hidden" / CANARY
    hidden.mkdir(parents=True)
    for file in (model, data):
        shutil.copy(file, hidden)
    environment = {
        "CANARY": CANARY,
        "FOLDER": str(hidden),
        "REMOTE": REMOTE,
        "PYTHONPATH": f"{ROOT}:{places}",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    (tmp_path / "temporary").mkdir()
    done = forge(
        "run", *flags, "model.path=${oc.env:FOLDER}/tiny.onnx", "data.path=${oc.env:FOLDER}/samples.npz",
        "quantize=static", "encrypt=password", "encrypt.password=[env:NOT_SET,keyring:models/one]",
        f"store.remote='{REMOTE}'" if flags else "store.remote=${oc.env:REMOTE}", "out=out", env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert len(list((tmp_path / "work").rglob("modelKey.bin"))) == (2 if flags else 1)
    assert files_with(CANARY, tmp_path / "work", tmp_path / "store", tmp_path / "temporary") == []


def test_a_sweep_leaves_no_file_of_hydras(forge: Any, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    done = forge("run", "-m", "target=host,x86-64/v2", "model.path=none", env={"TMPDIR": str(tmp_path / "temporary")})
    assert done.returncode == 1
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path for path in (tmp_path / "work").rglob("*") if path.is_file()] == []


@pytest.mark.every(6)
@pytest.mark.parametrize("option", ["encrypt.key_ref", "target.description", "data.scale", "evaluate.metric"])
def test_an_option_that_is_written_down_does_not_come_from_the_environment(forge: Any, option: str) -> None:
    done = forge("run", "experiment=digits", f"{option}=${{oc.env:CANARY}}", env=ENVIRONMENT)
    assert done.returncode == 1
    assert f"error: {option}: expected a value of its own" in done.stderr
    assert CANARY not in done.stderr


def test_what_comes_from_the_environment_by_another_option_is_found_too(forge: Any) -> None:
    done = forge("run", "model.path=${oc.env:CANARY}", "encrypt.key_ref=a ${model.path}", env=ENVIRONMENT)
    assert done.returncode == 1
    assert "error: encrypt.key_ref: expected a value of its own" in done.stderr
    assert CANARY not in done.stderr


def test_a_process_that_has_the_password_leaves_no_core_dump(tmp_path: Path) -> None:
    code = (
        "import resource; from pathlib import Path; from forge_pipeline.pipeline.build import make_runner;"
        "from forge_pipeline.store import Store;"
        f"make_runner(Store(Path({str(tmp_path)!r})), ('env:CANARY',), label='', sealed=True, model='');"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )

    def raised() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (min(4096, hard) if hard >= 0 else 4096, hard))

    environment = {**os.environ, "CANARY": CANARY, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, preexec_fn=raised, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
