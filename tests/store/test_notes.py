"""What a store notes of an action for people: kept beside it, gone with it, and worth nothing to a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_pipeline.digest import digest_json
from forge_pipeline.store import Note, Store
from forge_pipeline.store.disk import NOTES, fan_out

KEY = digest_json("noted")
NOTE = Note(came="built", when=1e9, model="net.onnx", reason="compile.opt_level: 3 -> 2")


def _filled(folder: Path) -> Store:
    store = Store(folder)
    store.record(KEY, {"out": b"1"}, seconds=1, report={})
    store.take_note(KEY, NOTE)
    return store


def test_a_note_is_read_as_it_was_written_and_goes_with_its_action(tmp_path: Path) -> None:
    with _filled(tmp_path) as store:
        assert store.note(KEY) == NOTE
        assert store.note(digest_json("another")) is None
        store.gc()
        assert store.note(KEY) == NOTE
        store.gc(keep_bytes=0)
        assert list((tmp_path / NOTES).rglob("*/*")) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"came": "stolen"}', b"[" * 100_000, b"\xff"])
def test_a_damaged_note_is_none_and_the_action_is_still_a_hit(tmp_path: Path, content: bytes) -> None:
    with _filled(tmp_path) as store:
        path = tmp_path / NOTES / fan_out(KEY)
        path.chmod(0o600)
        path.write_bytes(content)
        assert store.note(KEY) is None
        assert store.lookup(KEY) is not None
        store.take_note(KEY, NOTE)
        assert store.note(KEY) == NOTE


def test_to_peek_verifies_and_moves_nothing(tmp_path: Path) -> None:
    with _filled(tmp_path) as store:
        action, is_here = store.peek(KEY) or (None, False)
        assert (action, is_here) == (store.lookup(KEY), True)
        assert action is not None
        store.path(action.outputs["out"]).unlink()
        assert store.peek(KEY) is None
        assert not list((tmp_path / "quarantine").iterdir())


def test_what_came_from_a_remote_is_known_to_have(tmp_path: Path) -> None:
    from contextlib import closing

    from forge_pipeline.store.channel import Terms
    from forge_pipeline.store.remote import Remote

    def build() -> tuple[dict[str, bytes], dict[str, object]]:
        return {"out": b"1"}, {}

    terms = Terms(url=str(tmp_path / "remote"))
    for name, expected in (("one", False), ("two", True)):
        with closing(Remote(terms, print)) as remote, Store(tmp_path / name, remote) as store:
            if expected:
                assert store.peek(KEY) is not None and not (tmp_path / name / "actions/v1" / fan_out(KEY)).exists()
            store.get_or_build(KEY, build)
            assert store.was_fetched(KEY) is expected
