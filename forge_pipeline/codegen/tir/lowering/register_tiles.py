"""Tiles of sums in registers have the size of a tile, and are allocated where one is computed.

A schedule gives a tile the shape of the whole result, and reads and writes it at the result's places. TVM works out
what a tile needs of that, access by access under all conditions around it: most of the time that a kernel of open sizes
takes to compile. Where it does not see that a place is of one tile alone, it allocates memory for the whole result,
four times over in a depthwise convolution of open size.

A schedule's places are sums: of what is one number wherever the tile is in use, and of turns of loops of known length
inside. The first is what they have in common, and the others are what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.lowering.places import Place, are_same, place_of

SCOPE = "local"
TILES = "forge.register_tiles"
"""The annotation of a block: buffers that are to be allocated there."""


def taken(function: Any, _module: Any, _context: Any) -> Any:
    """Return a scheduled kernel with its tiles noted where they are to be; what is no such tile stays as it was."""
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize):
        return function
    uses = _Uses([buffer for buffer in root.block.alloc_buffers if buffer.scope() == SCOPE])
    if not uses.found:
        return function
    tvm_ffi.structural_mutate(root.block.body, uses.visitors())
    tiles = [tile for buffer in uses.found for tile in uses.tiles(buffer)]
    if not tiles:
        return function
    block = root.block
    body = tvm_ffi.structural_mutate(block.body, _Placing(tiles).visitors())
    kept = [buffer for buffer in block.alloc_buffers if not any(buffer.same_as(tile.old) for tile in tiles)]
    done = s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, _with(tiles, (), body), block.init, kept,
        block.match_buffers, block.annotations,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, done))


def put(function: Any, _module: Any, _context: Any) -> Any:
    """Return the kernel with its tiles allocated where they are noted."""

    def allocate(block: s_tir.SBlock, mutator: Any) -> s_tir.SBlock:
        done = mutator.default_mutate(block)
        tiles = dict(done.annotations).get(TILES)
        if tiles is None:
            return done
        return s_tir.SBlock([], [], [], "", done.body, alloc_buffers=[*done.alloc_buffers, *tiles])

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(s_tir.SBlock, allocate)]))


class _Step(NamedTuple):
    """What a statement is in: a loop, or a case of a choice."""

    number: int
    """In program order."""
    case: int
    loop: Any


Path = tuple[_Step, ...]


class _Use(NamedTuple):
    path: Path
    places: tuple[Any, ...]


@dataclass(frozen=True)
class _Tile:
    """A buffer's uses below one place, and the buffer that they become."""

    old: Any
    home: Path
    new: Any
    least: tuple[int, ...]


class _Walk:
    """A walk through a kernel that knows the loops, cases and axes of blocks around."""

    def __init__(self) -> None:
        self.path: list[_Step] = []
        self.values: list[dict[Any, Any]] = []
        self.count = 0

    def visitors(self) -> list[Any]:
        return [
            (tirx.For, self.loop), (tirx.IfThenElse, self.choice), (s_tir.SBlockRealize, self.realize),
            (TensorLoad, self.load), (tirx.BufferStore, self.store),
        ]  # fmt: skip

    def loop(self, loop: tirx.For, mutator: Any) -> Any:
        self.count += 1
        self.path.append(_Step(self.count, 0, loop))
        done = mutator.default_mutate(loop)
        path = tuple(self.path)
        self.path.pop()
        body = self.around(path, done.body)
        return tirx.For(done.loop_var, done.min, done.extent, done.kind, body, annotations=dict(done.annotations))

    def choice(self, choice: tirx.IfThenElse, mutator: Any) -> Any:
        self.count += 1
        number, cases = self.count, []
        condition = mutator.mutate(choice.condition)
        for which, case in enumerate((choice.then_case, choice.else_case)):
            self.path.append(_Step(number, which, None))
            cases.append(None if case is None else self.around(tuple(self.path), mutator.mutate(case)))
            self.path.pop()
        return tirx.IfThenElse(condition, *cases)

    def realize(self, realize: s_tir.SBlockRealize, mutator: Any) -> Any:
        axes = (axis.var for axis in realize.block.iter_vars)
        self.values.append(dict(zip(axes, map(self.composed, realize.iter_values), strict=True)))
        done = mutator.default_mutate(realize)
        self.values.pop()
        return done

    def load(self, load: TensorLoad, mutator: Any) -> Any:
        return mutator.default_mutate(load)

    def store(self, store: tirx.BufferStore, mutator: Any) -> Any:
        return mutator.default_mutate(store)

    def around(self, _path: Path, body: Any) -> Any:
        """Return the body of a loop or case."""
        return body

    def composed(self, expression: Any) -> Any:
        """Return ``expression`` of turns of loops, without axes of blocks."""
        for values in reversed(self.values):
            expression = rewriting.substitute(expression, values.get)
        return expression


class _Uses(_Walk):
    """Where buffers are read and written."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        super().__init__()
        self.found: dict[Any, list[_Use]] = {buffer: [] for buffer in buffers}
        self.named: list[Any] = []
        self.opaque: set[Any] = set()
        """Buffers of which more is used than single places."""
        self.summed: dict[Any, list[Any]] = {buffer: [] for buffer in buffers}
        """The turns of loops that add to a buffer."""

    def visitors(self) -> list[Any]:
        return [*super().visitors(), (Call, self.call), (tirx.Bind, self.bind), (tirx.Let, self.bind)]

    def load(self, load: TensorLoad, mutator: Any) -> Any:
        self._note(load.source, load.indices)
        return super().load(load, mutator)

    def store(self, store: tirx.BufferStore, mutator: Any) -> Any:
        self._note(store.buffer, store.indices)
        return super().store(store, mutator)

    def call(self, call: Call, mutator: Any) -> Any:
        self.opaque.update(argument for argument in call.args if argument in self.found)
        return mutator.default_mutate(call)

    def bind(self, bind: Any, mutator: Any) -> Any:
        self.named.append(bind.var)
        return mutator.default_mutate(bind)

    def realize(self, realize: s_tir.SBlockRealize, mutator: Any) -> Any:
        block = realize.block
        self.opaque.update(matched.source.source for matched in block.match_buffers)
        kept: list[Any] = []
        summed: list[Any] = []
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            adds = int(axis.iter_type) == primitives.REDUCTION
            (summed if adds else kept).extend(rewriting.variables(self.composed(value)))
        only = [turn for turn in summed if not any(turn.same_as(other) for other in kept)]
        for region in block.writes:
            if region.source in self.summed:
                self.summed[region.source].extend(only)
        return super().realize(realize, mutator)

    def tiles(self, buffer: Any) -> list[_Tile]:
        """Return what ``buffer`` becomes, one for each case of a choice around all uses; nothing if not understood."""
        if buffer in self.opaque or not self.found[buffer]:
            return []
        tiles: list[_Tile] = []
        for home, uses in _homes(self.found[buffer], 0):
            tile = self._tile(buffer, home, uses)
            if tile is None or any(_keys(tile.home) == _keys(other.home) for other in tiles):
                return []
            tiles.append(tile)
        return tiles

    def _tile(self, buffer: Any, home: Path, uses: Sequence[_Use]) -> _Tile | None:
        for depth, step in enumerate(home):
            if step.loop is not None and any(step.loop.loop_var.same_as(turn) for turn in self.summed[buffer]):
                home = home[:depth]
                break
        first: list[Place] = []
        ranges: list[list[tuple[int, int]]] = []
        for use in uses:
            turns = _turns(use.path[len(home) :])
            places = [place_of(place, turns, self.named) for place in use.places]
            known = [place for place in places if place is not None]
            if len(known) < len(places):
                return None
            first = first or known
            if not all(are_same(one.fixed, other.fixed) for one, other in zip(first, known, strict=True)):
                return None
            ranges.append([place.range() for place in known])
        ends = [(min(low for low, _ in axis), max(high for _, high in axis)) for axis in zip(*ranges, strict=True)]
        new = tirx.decl_buffer(
            [high - low + 1 for low, high in ends], str(buffer.ty.dtype), buffer.name, scope=buffer.scope()
        )
        return _Tile(buffer, home, new, tuple(low for low, _ in ends))

    def _note(self, buffer: Any, places: Any) -> None:
        if buffer in self.found:
            self.found[buffer].append(_Use(tuple(self.path), tuple(self.composed(place) for place in places)))


class _Placing(_Walk):
    """Puts tiles in the stead of buffers."""

    def __init__(self, tiles: Sequence[_Tile]) -> None:
        super().__init__()
        self.tiles = tiles

    def visitors(self) -> list[Any]:
        return [*super().visitors(), (s_tir.SBlock, self.block)]

    def load(self, load: TensorLoad, mutator: Any) -> Any:
        found = self._found(load.source, load.indices)
        return super().load(load, mutator) if found is None else tirx.BufferLoad(*found)

    def store(self, store: tirx.BufferStore, mutator: Any) -> Any:
        found = self._found(store.buffer, store.indices)
        done = super().store(store, mutator)
        return done if found is None else tirx.BufferStore(found[0], done.value, found[1])

    def block(self, block: s_tir.SBlock, mutator: Any) -> Any:
        done = mutator.default_mutate(block)
        reads, writes = (
            [region for region in regions if not any(region.source.same_as(tile.old) for tile in self.tiles)]
            for regions in (done.reads, done.writes)
        )
        return s_tir.SBlock(
            done.iter_vars, reads, writes, done.name_hint, done.body, done.init, done.alloc_buffers,
            done.match_buffers, done.annotations,
        )  # fmt: skip

    def around(self, path: Path, body: Any) -> Any:
        return _with(self.tiles, path, body)

    def _found(self, buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        for tile in self.tiles:
            if tile.old.same_as(buffer) and _keys(self.path[: len(tile.home)]) == _keys(tile.home):
                turns = _turns(self.path[len(tile.home) :])
                places = [place_of(self.composed(place), turns, ()) for place in indices]
                kinds = [str(place.ty.dtype) for place in indices]
                return tile.new, [
                    place.less(least, kind)
                    for place, least, kind in zip(places, tile.least, kinds, strict=True)
                    if place is not None
                ]
        return None


def _with(tiles: Sequence[_Tile], path: Path, body: Any) -> Any:
    """Return ``body`` with the tiles noted whose home it is."""
    new = [tile.new for tile in tiles if _keys(tile.home) == _keys(path)]
    if not new:
        return body
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "", body, annotations={TILES: new}))


def _homes(uses: Sequence[_Use], depth: int) -> Iterator[tuple[Path, list[_Use]]]:
    """Yield the innermost loop or case that all uses are in with these; those of different cases are on their own."""
    path = uses[0].path
    while all(len(use.path) > depth for use in uses) and len({_key(use.path[depth]) for use in uses}) == 1:
        depth += 1
    following = {use.path[depth].number if len(use.path) > depth else -1 for use in uses}
    if len(following) > 1 or -1 in following:
        yield path[:depth], list(uses)
        return
    for case in (0, 1):
        yield from _homes([use for use in uses if use.path[depth].case == case], depth + 1)


def _key(step: _Step) -> tuple[int, int]:
    return step.number, step.case


def _keys(path: Sequence[_Step]) -> list[tuple[int, int]]:
    return [_key(step) for step in path]


def _turns(path: Sequence[_Step]) -> dict[Any, Any]:
    """Return the loops of ``path`` by what counts their turns."""
    return {step.loop.loop_var: step.loop for step in path if step.loop is not None}
