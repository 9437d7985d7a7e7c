"""Where the tensors of a function lie: at fixed places as far as sizes are known, else in buffers that grow.

Storages whose size and tensors are known lie one behind the other in scratch memory: what they share with each other
was decided before (``codegen.memory``). The others get buffers, such that none that are in use at once share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from forge_pipeline.codegen.program.operations import Function, Kind, Number, Place, Reserve, Return, Storage, View

ALIGNMENT: Final = 64


def place(function: Function, *, keeps_results: bool = False) -> None:
    """Place all tensors of ``function``. With ``keeps_results``, what it returns lies in memory of its own.

    What a region returns lies in buffers, which go to whoever takes the results.
    """
    returned = _returned(function)
    kept = returned if keeps_results else set()
    fixed = _fixed_storages(function)
    if function.demands is not None:
        fixed = [storage for storage in fixed if storage not in returned]
    for storage in fixed:
        size = -(-_whole(storage.size) // ALIGNMENT) * ALIGNMENT
        if storage in kept:
            storage.offset, function.kept = function.kept, function.kept + size
        else:
            storage.offset, function.scratch = function.scratch, function.scratch + size
    left = []
    for operation in function.code:
        if isinstance(operation, Reserve) and operation.storage in fixed:
            continue
        if isinstance(operation, Place) and operation.storage in fixed:
            operation.tensor.kind = Kind.KEPT if operation.storage in kept else Kind.SCRATCH
            operation.tensor.where = operation.storage.offset + operation.offset
            continue
        if isinstance(operation, View) and _is_fixed(operation):
            operation.tensor.kind, operation.tensor.where = operation.source.kind, operation.source.where
            continue
        left.append(operation)
    function.code = left
    _give_buffers(function)


def _fixed_storages(function: Function) -> list[Storage]:
    """Return the storages whose size is known, and all of whose tensors are."""
    found = dict.fromkeys(
        operation.storage
        for operation in function.code
        if isinstance(operation, Reserve) and isinstance(operation.storage.size, int)
    )
    for operation in function.code:
        if isinstance(operation, Place) and not operation.tensor.is_sized:
            found.pop(operation.storage, None)
    return list(found)


def _is_fixed(view: View) -> bool:
    return view.tensor.is_sized and view.source.kind not in (Kind.INPUT, Kind.DYNAMIC)


def _returned(function: Function) -> set[Storage]:
    results = [tensor for operation in function.code if isinstance(operation, Return) for tensor in operation.tensors]
    return {tensor.storage for tensor in results if tensor.storage is not None}


def _whole(size: Number) -> int:
    if not isinstance(size, int):
        raise TypeError("a storage whose size is not known has no place")
    return size


def _give_buffers(function: Function) -> None:
    """Give each storage that is left a buffer that is free while it is used; one that held as much, where there is."""
    last: dict[Storage, int] = {}
    for at, operation in enumerate(function.code):
        last.update((tensor.storage, at) for tensor in operation.tensors if tensor.storage is not None)
    free: list[tuple[int, Number]] = []
    busy: list[Storage] = []
    for at, operation in enumerate(function.code):
        if not isinstance(operation, Reserve):
            continue
        free += [(storage.buffer, storage.size) for storage in busy if last.get(storage, -1) < at]
        busy = [storage for storage in busy if last.get(storage, -1) >= at]
        storage = operation.storage
        storage.buffer = _taken(free, storage.size)
        if storage.buffer < 0:
            storage.buffer, function.buffers = function.buffers, function.buffers + 1
        busy.append(storage)


def _taken(free: list[tuple[int, Number]], size: Number) -> int:
    """Take a buffer from those that are free, one of this size first; -1 where there is none."""
    if not free:
        return -1
    places: Iterable[int] = reversed(range(len(free)))
    found = next((place for place in places if free[place][1] == size), len(free) - 1)
    return free.pop(found)[0]
