"""Remotes on servers that others made, with a faulting proxy before them: what is read, lost and refused."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from forge_pipeline.carrier.connect import connect
from forge_pipeline.carrier.files import Files
from forge_pipeline.digest import digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.disk import fan_out
from forge_pipeline.store.remote import Remote
from forge_pipeline.store.transfer import collect, listed, pull, push
from tests.support import proxy as faults
from tests.support.proxy import Proxy
from tests.support.servers import PASSWORD, SERVERS, Server, serving

pytestmark = pytest.mark.long

LARGE = hashlib.shake_256(b"large").digest(12 << 20)
CONTENTS = {"large": LARGE, "small": b"small" * 100, "empty": b""}
KEY = digest_json("a key on a server")
WRITABLE = [name for name in SERVERS if name != "rclone http"]
WEB = [name for name in SERVERS if "sftp" not in name]
QUICK = {"answer": 2.0, "patience": 10.0}


@dataclass
class Place:
    """One server with a proxy before it, and what stores told."""

    server: Server
    proxy: Proxy
    folder: Path
    told: list[str] = field(default_factory=list)

    def terms(self, url: str | None = None, **more: Any) -> Terms:
        options = {**self.server.options(self.proxy.port), **more.pop("options", {})}
        return Terms(url=url or self.server.url(self.proxy.port), options=json.dumps(options), **more)

    def remote(self, **more: Any) -> Remote:
        return Remote(self.terms(**more), self.told.append)

    def files(self) -> Files:
        return connect(self.server.url(self.server.port), self.server.options(self.server.port))

    def use(self, name: str, **more: Any) -> tuple[Any, bool]:
        """Ask a store of its own for the key, and build where it has none."""
        with closing(self.remote(**more)) as remote, Store(self.folder / name, remote, on_damage=self.told.append) as s:
            return s.get_or_build(KEY, lambda: (CONTENTS, {}))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with serving(request.param, tmp_path / "server") as server, Proxy(server.port) as proxy:
        yield Place(server, proxy, tmp_path)


@pytest.fixture
def filled(place: Place) -> Place:
    assert place.use("builder")[1] is False
    assert place.told == []
    return place


@pytest.mark.parametrize("place", WRITABLE, indirect=True)
def test_what_one_machine_built_is_a_hit_on_another_for_the_price_of_its_bytes(filled: Place) -> None:
    before = filled.proxy.answered
    action, hit = filled.use("other")
    assert (hit, filled.told) == (True, [])
    assert {
        name: (filled.folder / "other/objects" / fan_out(d)).read_bytes() for name, d in action.outputs.items()
    } == (CONTENTS)
    assert filled.proxy.answered - before < 1.05 * sum(action.sizes.values())


@pytest.mark.parametrize("place", ["rclone http"], indirect=True)
def test_a_server_that_is_only_read_serves_what_lies_there(place: Place) -> None:
    files = place.folder / "server" / "files" / "bucket" / "cache"
    with (
        closing(Remote(Terms(url=str(files)), place.told.append)) as remote,
        Store(place.folder / "one", remote) as one,
    ):
        one.get_or_build(KEY, lambda: (CONTENTS, {}))
    assert place.use("other", writable=False)[1] is True
    assert place.told == []


@pytest.mark.parametrize("place", WRITABLE, indirect=True)
def test_whole_stores_are_sent_listed_fetched_and_removed(place: Place) -> None:
    def quiet(done: int, total: int) -> None:
        counts.append((done, total))

    counts: list[tuple[int, int]] = []
    with Store(place.folder / "one") as one:
        for number in range(6):
            one.record(digest_json(number), {"out": b"%d" % number * 50_000}, seconds=0, report={})
    with closing(Remote(place.terms(required=True), place.told.append, width=3)) as remote:
        with Store(place.folder / "one", remote) as one:
            assert (push(one, remote, quiet).moved, push(one, remote, quiet).moved) == (6, 0)
        assert counts[5] == (6, 6)
        assert {kept.action.key for kept in listed(remote, quiet)} == {digest_json(number) for number in range(6)}
        with Store(place.folder / "two", remote) as two:
            assert pull(two, remote, quiet).moved == 6
            assert len(two.actions()) == 6
        assert collect(remote, quiet, keep_seconds=0)[:2] == (6, 0), "objects of the last day stay"
        assert listed(remote, quiet) == []
    assert place.told == []


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of Azure's client, in this process
# Google's emulator answers 501 to an object of this size in the place of another.
@pytest.mark.parametrize("place", [name for name in WRITABLE if name != "emulated gs"], indirect=True)
@pytest.mark.parametrize("what", ["object", "record"])
def test_what_was_flipped_there_is_not_used_and_is_replaced(filled: Place, what: str) -> None:
    action, _ = filled.use("builder")
    name = "actions/v1/" + fan_out(KEY) if what == "record" else "objects/" + fan_out(action.outputs["large"])
    pieces: list[bytes] = []
    filled.files().read(name, 1 << 30, pieces.append)
    data = bytearray(b"".join(pieces))
    data[70] ^= 4
    (filled.folder / "flipped").write_bytes(data)
    filled.files().send(str(filled.folder / "flipped"), name, lambda count: None)
    assert filled.use("other")[1] is False
    (told,) = filled.told
    assert told.startswith(f"{name}: damaged in the remote store")
    assert filled.use("third")[1] is True


@pytest.mark.parametrize("place", WRITABLE, indirect=True)
def test_two_machines_that_ask_for_one_key_build_it_once(place: Place) -> None:
    builds: list[str] = []

    def ask(name: str) -> None:
        def build() -> tuple[dict[str, bytes], dict[str, Any]]:
            builds.append(name)
            time.sleep(6)
            return CONTENTS, {}

        with closing(place.remote()) as remote, Store(place.folder / name, remote) as store:
            store.get_or_build(KEY, build)

    machines = [Thread(target=ask, args=(name,)) for name in ("one", "two")]
    for machine in machines:
        machine.start()
        time.sleep(0.5)
    for machine in machines:
        machine.join()
    assert len(builds) == 1
    assert place.told == []
    assert [name for entries in place.files().names("leases") for name in entries] == []


FAULTS: dict[str, faults.Fault] = {
    "refused": faults.reset,
    "hanging": faults.silent,
    "cut short": faults.after(3 << 20, faults.reset),
    "hanging in the middle": faults.after(3 << 20, faults.silent),
    "gone in the middle": faults.after(3 << 20, faults.gone),
    "endless": faults.endless,
}
WEB_FAULTS = {"500": faults.status(500), "403": faults.status(403)}
CASES = [(name, fault) for name in WRITABLE for fault in FAULTS] + [
    (name, fault) for name in WEB if name in WRITABLE for fault in WEB_FAULTS
]


@pytest.mark.parametrize(("place", "fault"), CASES, indirect=["place"])
def test_a_fault_costs_seconds_and_a_line_and_what_was_built_is_completed_later(filled: Place, fault: str) -> None:
    filled.proxy.answered, filled.proxy.fault = 0, (FAULTS | WEB_FAULTS)[fault]
    begun = time.monotonic()
    _, hit = filled.use("other", **QUICK)
    seconds = time.monotonic() - begun
    print(f"{fault}: {seconds:.1f} s, {'hit' if hit else 'built'}: {filled.told}")
    assert hit is False
    assert seconds < 60
    assert 1 <= len(filled.told) <= 2 and not any("\n" in line or PASSWORD in line for line in filled.told)
    with pytest.raises(StoreError, match="it is required"):
        filled.use("strict", required=True, **QUICK)
    filled.proxy.fault = None
    filled.told.clear()
    filled.files().remove("actions/v1/" + fan_out(KEY))  # as if the remote had been away from the first
    assert filled.use("other")[1] is True
    assert filled.use("third")[1] is True
    assert filled.told == []


@pytest.mark.parametrize("place", WRITABLE, indirect=True)
def test_a_place_that_does_not_exist_is_an_error_where_it_is_required_and_is_not_made(place: Place) -> None:
    url = place.server.url(place.proxy.port).replace(*place.server.missing)
    with pytest.raises(StoreError, match="it is required"):
        place.remote(url=url, required=True)
    place.use("one", url=url)
    assert place.told != []
    with pytest.raises(StoreError, match="it is required"):
        place.remote(url=url, required=True)


@pytest.mark.parametrize("place", [name for name in SERVERS if name not in ("moto s3", "emulated gs")], indirect=True)
def test_wrong_credentials_are_an_error_where_the_remote_is_required(place: Place) -> None:
    url = place.server.url(place.proxy.port)
    with pytest.raises(StoreError, match="it is required") as refusal:
        place.use("one", url=url.replace(PASSWORD, "wrongwrong"), options=place.server.wrong, required=True)
    assert "wrongwrong" not in str(refusal.value) and PASSWORD not in str(refusal.value)
