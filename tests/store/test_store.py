"""The store as its callers see it: built once, verified always, collected only when nobody needs it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Action, Store

Damage = Callable[[Path, bytes], None]
Contents = dict[str, bytes]


def _never() -> tuple[Contents, dict[str, Any]]:
    raise AssertionError("this key must not be built again")


def _files(store: Store, action: Action) -> Contents:
    return {name: store.read(digest) for name, digest in action.outputs.items()}


def _record(store: Store, key: str) -> Path:
    """Return the file behind an action, as the layout in disk.py says."""
    root = store.path(key).parents[2]
    return root / "actions" / "v1" / key[:2] / key[2:]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store(tmp_path_factory.mktemp("shared")) as store:
        yield store


@settings(deadline=None, max_examples=50)
@given(
    contents=st.dictionaries(
        st.text("abc.-_ é", min_size=1).filter(lambda name: name.strip(".")), st.binary(), max_size=3
    ),
    key=st.binary(min_size=32, max_size=32).map(bytes.hex),
    seconds=st.floats(0, 1e5),
)
def test_what_is_recorded_is_looked_up_equal_and_read_back_unchanged(
    shared: Store, contents: Contents, key: str, seconds: float
) -> None:
    recorded = shared.record(key, contents, seconds=seconds, report={"list": (1, 2), "a": {"z": None, "b": 1.5}})
    assert shared.lookup(key) == recorded
    assert _files(shared, recorded) == contents
    assert recorded.sizes == {name: len(data) for name, data in contents.items()}
    assert (recorded.key, recorded.seconds) == (key, seconds)
    assert recorded.report == {"list": [1, 2], "a": {"z": None, "b": 1.5}}


def test_a_key_is_built_once_and_then_found(bench: Any, key: str, contents: Contents) -> None:
    store = bench.store()
    built, hit = store.get_or_build(key, bench.build)
    assert not hit
    assert store.get_or_build(key, _never) == (built, True)
    assert bench.store().get_or_build(key, _never) == (built, True)
    assert _files(store, built) == contents
    assert (bench.builds, bench.told) == (1, [])


def test_a_build_that_fails_records_nothing_and_the_next_one_may_succeed(bench: Any, key: str) -> None:
    store = bench.store()

    def fail() -> tuple[Contents, dict[str, Any]]:
        raise OSError("a compiler that fails is none of the store's business")

    with pytest.raises(OSError, match="none of the store's business"):
        store.get_or_build(key, fail)
    assert store.lookup(key) is None
    assert store.get_or_build(key, bench.build)[1] is False


def test_a_result_that_is_not_accepted_is_built_again_and_replaced(bench: Any, key: str) -> None:
    store = bench.store()
    first, _ = store.get_or_build(key, lambda: ({"out": b"first"}, {}))
    refuse_first = {"accept": lambda action: action != first}
    second, hit = store.get_or_build(key, lambda: ({"out": b"second"}, {}), **refuse_first)
    assert not hit
    assert store.get_or_build(key, _never, **refuse_first) == (second, True)
    assert _files(store, second) == {"out": b"second"}


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "flip": lambda data: bytes([data[0] ^ 1]) + data[1:] if data else b"no longer empty",
    "truncate": lambda data: data[:-1] if data else b"no longer empty",
    "replace": lambda data: b"somebody else's bytes",
    "delete": lambda data: None,
}


@pytest.mark.parametrize("name", ["model.onnx", "report.json", "empty"])
@pytest.mark.parametrize("harm", HARMS)
def test_any_harmed_output_is_named_and_built_again(
    bench: Any, key: str, contents: Contents, damage: Damage, name: str, harm: str
) -> None:
    store = bench.store()
    built, _ = store.get_or_build(key, bench.build)
    digest = built.outputs[name]
    harmed = HARMS[harm](contents[name])
    if harmed is None:
        store.path(digest).unlink()
    else:
        damage(store.path(digest), harmed)
    rebuilt, hit = store.get_or_build(key, bench.build)
    assert not hit
    assert rebuilt.outputs == built.outputs
    assert _files(store, rebuilt) == contents
    assert len(bench.told) == 1, "told once, not once more under the lock"
    assert str(store.path(digest)) in bench.told[0] and digest in bench.told[0]
    assert store.get_or_build(key, _never) == (rebuilt, True)


def test_two_hundred_flipped_bytes_are_each_noticed_and_rebuilt(bench: Any, key: str, damage: Damage) -> None:
    store = bench.store()
    source = random.Random(7)
    contents = {name: source.randbytes(size) for name, size in {"model": 40_000, "metadata": 300, "key": 164}.items()}
    built, _ = store.get_or_build(key, lambda: (contents, {}))
    record = _record(store, key)
    paths = [record, *(store.path(digest) for digest in built.outputs.values())]
    for round_ in range(200):
        path = paths[round_ % len(paths)]
        changed = bytearray(path.read_bytes())
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        damage(path, bytes(changed))
        rebuilt, hit = store.get_or_build(key, lambda: (contents, {}))
        assert (hit, rebuilt.outputs) == (False, built.outputs)
        assert len(bench.told) == round_ + 1 and str(path) in bench.told[round_]
    assert _files(store, built) == contents


@pytest.mark.parametrize("harm", [b"", b"{}", b"\0" * 300])
def test_a_harmed_record_is_named_moved_and_its_action_built_again(
    bench: Any, key: str, damage: Damage, harm: bytes
) -> None:
    store = bench.store()
    store.get_or_build(key, bench.build)
    record = _record(store, key)
    damage(record, harm)
    assert store.lookup(key) is None
    (moved,) = (bench.root / "store" / "quarantine").iterdir()
    assert moved.read_bytes() == harm
    assert bench.told == [
        f"damaged in the store: {record}: expected a record of this action with its checksum, "
        f"found {len(harm)} bytes whose checksum is wrong; moved to {moved}"
    ]
    assert store.get_or_build(key, bench.build)[1] is False
    assert len(bench.told) == 1


def test_a_record_put_in_the_place_of_another_is_not_believed(bench: Any, key: str) -> None:
    store = bench.store()
    other = digest_json("another key")
    store.record(other, {"out": b"other"}, seconds=0, report={})
    _record(store, key).parent.mkdir()
    _record(store, key).write_bytes(_record(store, other).read_bytes())
    assert store.lookup(key) is None
    assert f"found the record of action {other}" in bench.told[0]
    assert store.lookup(other) is not None


def test_all_harmed_outputs_of_an_action_are_told_at_once(bench: Any, key: str, damage: Damage) -> None:
    store = bench.store()
    built, _ = store.get_or_build(key, bench.build)
    for digest in built.outputs.values():
        damage(store.path(digest), b"harm")
    assert store.lookup(key) is None
    assert len(bench.told) == len(built.outputs)


def test_damage_is_a_warning_in_the_log_unless_somebody_asks_for_it(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path) as store:
        action = store.record(key, {"out": b"out"}, seconds=0, report={})
        store.path(action.outputs["out"]).unlink()
        assert store.lookup(key) is None
    (told,) = caplog.records
    assert (told.levelname, told.name) == ("WARNING", "forge_pipeline.store.store")
    assert action.outputs["out"] in told.getMessage()


def test_reading_and_exporting_what_is_lost_is_refused_with_the_way_out(bench: Any, key: str, tmp_path: Path) -> None:
    store = bench.store()
    action, _ = store.get_or_build(key, bench.build)
    digest = action.outputs["model.onnx"]
    store.path(digest).unlink()
    for attempt in (lambda: store.read(digest), lambda: store.export(digest, tmp_path / "out")):
        with pytest.raises(StoreError) as refusal:
            attempt()
        assert str(refusal.value) == (
            f"{store.path(digest)}: expected the object that an action gave, found none that is sound, "
            "here or in a remote\nfix: run the command again: what is missing is built anew"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["", "ab", "../../etc/passwd", "AB" * 32, "ab" * 33])
def test_what_is_no_digest_is_no_key(bench: Any, key: str) -> None:
    store = bench.store()
    for attempt in (lambda: store.lookup(key), lambda: store.get_or_build(key, _never), lambda: store.path(key)):
        with pytest.raises(ValueError, match="is not a digest"):
            attempt()


def test_a_waiting_thread_is_told_and_takes_the_result(tmp_path: Path, key: str) -> None:
    waits: list[str] = []
    waiting = threading.Event()
    results: list[tuple[Action, bool]] = []

    def on_wait(key: str) -> None:
        waits.append(key)
        waiting.set()

    def second() -> None:
        with Store(tmp_path, on_wait=on_wait) as store:
            results.append(store.get_or_build(key, _never))

    def build() -> tuple[Contents, dict[str, Any]]:
        thread.start()
        assert waiting.wait(30)
        return {"out": b"out"}, {}

    thread = threading.Thread(target=second)
    with Store(tmp_path) as store:
        action, _ = store.get_or_build(key, build)
    thread.join()
    assert waits == [key]
    assert results == [(action, True)]


def test_different_keys_are_built_at_the_same_time(bench: Any) -> None:
    store = bench.store()
    inner = digest_json("inner")
    outer, _ = store.get_or_build(
        digest_json("outer"), lambda: (_files(store, store.get_or_build(inner, bench.build)[0]), {})
    )
    assert outer.outputs == store.lookup(inner).outputs


def _fill(store: Store, count: int, size: int) -> list[Action]:
    """Record ``count`` actions of ``size`` bytes each of their own and ``size`` shared ones, used in this order."""
    actions = []
    for index in range(count):
        files = {"own": bytes([index]) * size, "shared": b"s" * size}
        actions.append(store.record(digest_json(index), files, seconds=0, report={}))
        os.utime(_record(store, actions[-1].key), (1e9 + index, 1e9 + index))
    return actions


def test_actions_are_listed_by_last_use_and_a_hit_is_a_use(bench: Any) -> None:
    store = bench.store()
    oldest, middle, newest = _fill(store, 3, 10)
    assert store.actions() == [newest, middle, oldest]
    store.lookup(oldest.key)
    assert store.actions() == [oldest, newest, middle]


def test_collecting_keeps_the_most_recently_used_that_fit_and_counts_shared_bytes_once(bench: Any) -> None:
    store = bench.store()
    actions = _fill(store, 5, 1000)
    collected = store.gc(keep_bytes=3000)  # the shared object and two of their own
    assert (collected.actions, collected.objects, collected.kept) == (3, 3, 3000)
    assert store.actions() == actions[:2:-1]
    assert [store.lookup(action.key) for action in actions] == [None, None, None, *actions[3:]]
    assert bench.told == []


def test_collecting_by_age_drops_what_was_not_used_for_that_long(bench: Any) -> None:
    store = bench.store()
    actions = _fill(store, 3, 10)
    store.lookup(actions[1].key)
    assert store.gc(keep_seconds=3600).actions == 2
    assert store.actions() == [actions[1]]


def test_collecting_without_limits_keeps_every_action_and_frees_what_none_needs(bench: Any, damage: Damage) -> None:
    store = bench.store()
    (action,) = _fill(store, 1, 1000)
    digest = digest_bytes(b"replaced")
    store.record(digest_json("replaced"), {"out": b"replaced"}, seconds=0, report={})
    store.record(digest_json("replaced"), {"out": b"by this"}, seconds=0, report={})
    damage(store.path(action.outputs["own"]), b"harm")
    assert len(store.verify()) == 1
    store.record(action.key, {"own": b"\0" * 1000, "shared": b"s" * 1000}, seconds=0, report={})
    collected = store.gc()
    assert (collected.actions, collected.objects, collected.freed) == (0, 1, len(b"replaced") + len(b"harm"))
    assert not store.path(digest).exists()
    assert list((bench.root / "store" / "quarantine").iterdir()) == []
    assert store.verify() == []


def test_collecting_is_refused_while_somebody_else_has_the_store_open_and_changes_nothing(bench: Any) -> None:
    store, other = bench.store(), bench.store()
    actions = _fill(store, 2, 10)
    for _ in range(2):  # the refusal must not lose the store's own claim, or the other one could collect under it
        for collector in (store, other):
            with pytest.raises(StoreError) as refusal:
                collector.gc(keep_bytes=0)
            assert str(refusal.value) == (
                f"{bench.root / 'store'}: expected a store that nobody else has open, "
                "found a build, or another command, that is using it\nfix: run this again when the builds are done"
            )
    other.close()
    assert store.actions() == actions[::-1]
    assert store.gc(keep_bytes=0).actions == 2


def test_delivered_files_survive_a_collection(bench: Any, tmp_path: Path) -> None:
    store = bench.store()
    (action,) = _fill(store, 1, 10)
    store.export(action.outputs["own"], tmp_path / "out")
    store.gc(keep_bytes=0)
    assert (tmp_path / "out").read_bytes() == b"\0" * 10


def test_verify_finds_harmed_objects_lost_objects_and_harmed_records(bench: Any, damage: Damage) -> None:
    store = bench.store()
    first, second, third = _fill(store, 3, 10)
    damage(store.path(first.outputs["own"]), b"harm")
    store.path(second.outputs["own"]).unlink()
    record = _record(store, third.key)
    damage(record, b"harm")
    found = {damage.path: damage.found for damage in store.verify()}
    assert found == {
        store.path(first.outputs["own"]): f"4 bytes with digest {digest_bytes(b'harm')}",
        store.path(second.outputs["own"]): "nothing",
        record: "4 bytes whose checksum is wrong",
    }
    assert [damage.path for damage in store.verify()] == sorted(
        store.path(action.outputs["own"]) for action in (first, second)
    ), "what is gone stays missing until its action is built again"


def test_files_of_others_in_the_store_are_left_alone(bench: Any) -> None:
    store = bench.store()
    (action,) = _fill(store, 1, 10)
    foreign = bench.root / "store" / "objects" / "README"
    foreign.write_bytes(b"hello")
    assert (store.verify(), store.actions()) == ([], [action])
    store.gc()
    assert foreign.exists()
