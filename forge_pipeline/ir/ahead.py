"""Reading ahead: what comes next is read by a thread while what is there is digested."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

DEPTH = 2  # pieces that wait: one is read while one is used
_SMALL = 1 << 16  # bytes up to which pieces are joined: a thread costs as much to wake as these to digest


def read_ahead(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of ``pieces``, small ones joined; what ``pieces`` raises is raised here."""
    waiting: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
    room, is_wanted = threading.Semaphore(DEPTH), True

    def read() -> None:
        end: BaseException | None = None
        try:
            for piece in _joined(pieces):
                room.acquire()
                if not is_wanted:
                    return
                waiting.put(piece)
        except BaseException as error:  # noqa: BLE001  handed to whoever reads, below
            end = error
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (piece := waiting.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            room.release()
    finally:
        is_wanted = False
        room.release()


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    small = bytearray()
    for piece in pieces:
        if len(piece) <= _SMALL:
            small += piece
        if small and (len(piece) > _SMALL or len(small) > _SMALL):
            yield bytes(small)
            small.clear()
        if len(piece) > _SMALL:
            yield piece
    if small:
        yield bytes(small)
