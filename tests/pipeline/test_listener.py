"""What is timed on this machine is timed alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest

from forge_pipeline.pipeline.listener import Terminal, timing


def test_two_builds_of_one_user_are_timed_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    entered = Event()

    def other() -> None:
        with Terminal().quiet():
            entered.set()

    thread = Thread(target=other)
    with timing():
        thread.start()
        assert not entered.wait(0.3)
    thread.join(60)
    assert entered.is_set()
    assert "another build is being timed on this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "the lock goes with its holder"
