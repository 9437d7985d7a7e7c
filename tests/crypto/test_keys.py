from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

from forge_pipeline.crypto.keys import MAX_PASSWORD, generate_password_file, read_password
from forge_pipeline.errors import ConfigError, SecretError


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_bytes(b"from a file\n")
    path.chmod(0o600)
    return path


def test_a_password_is_read_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_PASSWORD", "pässword")
    assert read_password(["env:MODEL_PASSWORD"]).reveal() == "pässword".encode()


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", b"secret"),
        (b"secret\n", b"secret"),
        (b"secret\r\n", b"secret"),
        (b" secret \n\n", b" secret \n"),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_a_password_file_may_end_in_one_newline(password_file: Path, content: bytes, password: bytes) -> None:
    password_file.write_bytes(content)
    assert read_password([f"file:{password_file}"]).reveal() == password


def test_a_password_is_read_from_a_file_descriptor_which_is_then_closed() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe\n")
    os.close(writing)
    assert read_password([f"fd:{reading}"]).reveal() == b"from a pipe"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


def test_a_password_is_read_from_a_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = types.ModuleType("keyring")
    entries = {("models", "team/one"): "from a keyring"}
    keyring.get_password = lambda service, name: entries.get((service, name))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert read_password(["keyring:models/team/one"]).reveal() == b"from a keyring"
    with pytest.raises(SecretError, match="found none there"):
        read_password(["keyring:models/team/two"])


def test_the_first_place_that_has_a_password_wins(monkeypatch: pytest.MonkeyPatch, password_file: Path) -> None:
    sources = ["env:MODEL_PASSWORD", f"file:{password_file}"]
    monkeypatch.delenv("MODEL_PASSWORD", raising=False)
    assert read_password(sources).reveal() == b"from a file"
    monkeypatch.setenv("MODEL_PASSWORD", "from the environment")
    assert read_password(sources).reveal() == b"from the environment"


def test_a_prompt_is_passed_over_without_a_terminal(monkeypatch: pytest.MonkeyPatch, password_file: Path) -> None:
    with open(os.devnull) as nothing:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", nothing)
        assert read_password(["prompt", f"file:{password_file}"]).reveal() == b"from a file"


PROMPTED = """
import sys
from forge_pipeline.crypto.keys import read_password
from forge_pipeline.errors import SecretError
try:
    print(read_password(["prompt"]).reveal())
except SecretError as refusal:
    print(refusal.found)
"""


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([b"typed\n", b"typed\n"], b"b'typed'\n"),
        ([b"typed\n", b"tipped\n"], b"two different ones\n"),
        ([b"\n"], b"an empty one\n"),
    ],
)
def test_a_prompt_asks_twice_on_a_terminal_and_shows_nothing(answers: list[bytes], outcome: bytes) -> None:
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROMPTED],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # without a controlling terminal, so that standard input is the one that is asked
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for answer in answers:
            while process.stderr.read(1) != b":":
                pass
            os.write(master, answer)
        assert process.stdout.read() == outcome
        assert b"typed" not in process.stderr.read()
    echoed = os.read(master, 1000) if select.select([master], [], [], 0)[0] else b""
    assert b"typed" not in echoed
    os.close(slave)
    os.close(master)


def test_where_no_place_has_a_password_all_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MODEL_PASSWORD", raising=False)
    missing = tmp_path / "missing"
    with pytest.raises(SecretError) as refusal:
        read_password(["env:MODEL_PASSWORD", f"file:{missing}", "fd:987"])
    assert str(refusal.value) == (
        f"password: expected one in env:MODEL_PASSWORD, file:{missing}, fd:987, found none there\n"
        "fix: set the variable or write the file (`forge-pipeline password PATH` makes one); "
        "encrypt.password lists the places"
    )


def test_no_place_at_all_is_refused() -> None:
    with pytest.raises(SecretError, match="found no place named"):
        read_password([])


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_password_file_that_others_can_reach_is_refused_with_the_command_that_helps(
    password_file: Path, mode: int
) -> None:
    password_file.chmod(mode)
    with pytest.raises(SecretError) as refusal:
        read_password([f"file:{password_file}"])
    assert str(refusal.value) == (
        f"{password_file}: expected a password file that only its owner can read, found mode {mode:04o}\n"
        f"fix: chmod 600 {password_file}"
    )


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_a_password_file_of_its_owner_alone_is_taken(password_file: Path, mode: int) -> None:
    password_file.chmod(mode)
    assert read_password([f"file:{password_file}"]).reveal() == b"from a file"


def test_the_mode_that_counts_is_that_of_the_file_behind_a_link(password_file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(password_file)
    password_file.chmod(0o644)
    with pytest.raises(SecretError, match="found mode 0644"):
        read_password([f"file:{link}"])


def test_a_folder_or_a_pipe_is_no_password_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("", "pipe"):
        with pytest.raises(SecretError, match="expected a regular file"):
            read_password([f"file:{tmp_path / name}"])


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * (MAX_PASSWORD + 1)], ids=["empty", "newline", "long"])
def test_a_password_of_no_or_unreasonable_length_is_refused(password_file: Path, content: bytes) -> None:
    password_file.write_bytes(content)
    with pytest.raises(SecretError, match=f"expected a password of 1 to {MAX_PASSWORD} bytes"):
        read_password([f"file:{password_file}"])


def test_an_empty_variable_is_refused_and_not_passed_over(monkeypatch: pytest.MonkeyPatch, password_file: Path) -> None:
    monkeypatch.setenv("MODEL_PASSWORD", "")
    with pytest.raises(SecretError, match=r"environment variable MODEL_PASSWORD: .* found an empty one"):
        read_password(["env:MODEL_PASSWORD", f"file:{password_file}"])


@pytest.mark.parametrize(
    "entry", ["hunter2", "hunter2:x", "env:", "file:", "fd:two", "fd:-1", "keyring:hunter2", "prompt:x"]
)
def test_an_entry_of_another_form_is_refused_and_never_repeated(entry: str, password_file: Path) -> None:
    """It may be the password itself, put there by mistake; it is refused even where an earlier place would do."""
    with pytest.raises(ConfigError) as refusal:
        read_password([f"file:{password_file}", entry])
    assert refusal.value.where == "encrypt.password"
    assert entry not in str(refusal.value).replace("env:NAME, file:PATH", "")
    assert "hunter2" not in str(refusal.value)


def test_a_keyring_that_is_not_installed_is_named_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(SecretError) as refusal:
        read_password(["keyring:models/demo"])
    assert str(refusal.value) == (
        "keyring:models/demo: expected the package keyring, found it is not installed\nfix: pip install keyring"
    )


def test_a_generated_password_file_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        generate_password_file(tmp_path / "new folder" / "password")
    finally:
        os.umask(old)
    path = tmp_path / "new folder" / "password"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["password"]
    assert len(read_password([f"file:{path}"]).reveal()) == 43


def test_generated_passwords_differ(tmp_path: Path) -> None:
    for name in "ab":
        generate_password_file(tmp_path / name)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_a_password_file_is_never_replaced(password_file: Path) -> None:
    with pytest.raises(SecretError, match="found one that is there already"):
        generate_password_file(password_file)
    assert password_file.read_bytes() == b"from a file\n"
    assert [entry.name for entry in password_file.parent.iterdir()] == ["password"]
