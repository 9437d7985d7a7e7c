"""One machine builds a key, and the others wait for what it gives: files in the remote that their holders keep fresh.

A lease is a file ``leases/KEY/beat``, claimed by whoever is first and written anew every few seconds while its holder
lives. No clocks are compared: whoever waits sees whether it still changes. One that does not is taken over. Where two
do that at once, both build, and give equal bytes: a lease saves work, and nothing depends on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

BEAT = 5.0  # seconds between two signs of life
DEAD = 20.0  # seconds without one after which a holder is gone
LOOK = 1.0  # seconds between two looks of whoever waits
LONGEST = 64  # bytes of a lease


class Ask(Protocol):
    """Puts a question to the remote; None where it gave no answer."""

    def __call__(self, request: dict[str, object], data: bytes | None = None) -> str | None:
        """Return how it ended."""


class Leases:
    """The leases of one process. ``ask`` never raises, ``read`` returns a file's bytes or None."""

    def __init__(self, ask: Ask, read: Callable[[str, int], bytes | None]) -> None:
        self._ask, self._read = ask, read
        self._held: dict[str, bytes] = {}
        self._beating: Thread | None = None
        self._changed = Condition()
        self._off = False

    def acquire(self, key: str, *, limit: float, ready: Callable[[], bool], on_wait: Callable[[], None]) -> None:
        """Return when ``key`` is ours to build, or ``ready`` says that it is built.

        Also where the remote knows no leases, and after ``limit`` seconds of waiting for a living holder.
        """
        mine = os.urandom(8).hex().encode()
        begun = fresh = time.monotonic()
        seen: bytes | None = None
        vacant = True
        while not self._off and limit > 0:
            end = self._ask({"do": "claim", "name": _name(key)}, mine) if vacant else "no"
            if end == "done":
                self._hold(key, mine)
                return
            if end != "no":
                self._off = True
                return
            if seen is None:
                on_wait()
            if ready() or time.monotonic() - begun > limit:
                return
            beat = self._read(_name(key), LONGEST) or b""
            vacant = not beat
            if beat != seen:
                seen, fresh = beat, time.monotonic()
            elif time.monotonic() - fresh > DEAD:
                if self._take_over(key, mine):
                    return
                seen, fresh = mine, time.monotonic()
            time.sleep(LOOK)

    def release(self, key: str) -> None:
        """Give a lease back, if it is held."""
        with self._changed:
            if self._held.pop(key, None) is None:
                return
            self._changed.notify_all()
        self._ask({"do": "release", "name": _name(key)})

    def _take_over(self, key: str, mine: bytes) -> bool:
        self._ask({"do": "write", "name": _name(key)}, mine)
        time.sleep(LOOK)
        if self._read(_name(key), LONGEST) != mine:
            return False
        self._hold(key, mine)
        return True

    def _hold(self, key: str, mine: bytes) -> None:
        with self._changed:
            self._held[key] = mine
            if self._beating is None:
                self._beating = Thread(target=self._beat, name="forge-store-lease", daemon=True)
                self._beating.start()

    def _beat(self) -> None:
        count = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._held, BEAT)
                if not self._held:
                    self._beating = None
                    return
                count += 1
                for key, mine in self._held.items():  # within the lock: nothing is written after its release
                    self._ask({"do": "write", "name": _name(key)}, b"%s %d" % (mine, count))


def _name(key: str) -> str:
    return f"leases/{key}/beat"
