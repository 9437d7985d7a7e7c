"""The words of a program with control flow: its values, its blocks, and the steps of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from forge_pipeline.codegen.regions import program as p
from forge_pipeline.errors import CompileError

CODES: Final = {
    kind: code
    for code, kind in enumerate(
        (
            *(p.Call, p.Extents, p.Prefix, p.Branch, p.Loop, p.MakeList),
            *(p.Insert, p.Erase, p.Pick, p.Length, p.Split, p.Join),
        ),
        start=1,
    )
}
DtypeWord = Callable[[str], int]


def words(program: p.Program, dtype_word: DtypeWord) -> list[int]:
    """Return how many values there are, and the blocks, that of the model first.

    Raises CompileError for more blocks within each other, or more steps, than a device takes.
    """
    writer = _Writer(dtype_word)
    writer.number(program.main)
    if writer.deepest > p.DEEPEST or writer.steps > p.MOST_STEPS:
        raise CompileError(
            where="control flow of the model",
            expected=f"at most {p.DEEPEST} graphs within each other, and {p.MOST_STEPS} steps",
            found=f"{writer.deepest} and {writer.steps}",
            fix="export the model with fewer branches and loops within each other",
        )
    return [program.values, len(writer.rows), *(word for row in writer.rows for word in row)]


class _Writer:
    """Blocks as they are found, each before those within it."""

    def __init__(self, dtype_word: DtypeWord) -> None:
        self.rows: list[list[int]] = []
        self.steps, self.deepest, self._depth = 0, 0, -1
        self._dtype_word = dtype_word

    def number(self, block: p.Block) -> int:
        """Write a block, and return its number."""
        row: list[int] = []
        self.rows.append(row)
        number = len(self.rows) - 1
        self.steps += len(block.steps)
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        row += [*_list(block.inputs), *_list(block.outputs), len(block.steps)]
        for step in block.steps:
            row += [CODES[type(step)], *self._fields(step)]
        self._depth -= 1
        return number

    def _fields(self, step: p.Step) -> Iterator[int]:
        if isinstance(step, p.Loop):
            yield from (step.count, step.condition, self.number(step.body), *_list(step.inputs))
            yield len(step.stacked)
            for share in step.stacked:
                yield from (self._dtype_word(share.dtype), *_list(share.shape))
            yield from _list(step.outputs)
            return
        for field in fields(step):
            yield from self._words(getattr(step, field.name))

    def _words(self, item: Any) -> Sequence[int]:
        if isinstance(item, p.Block):
            return [self.number(item)]
        return _list(item) if isinstance(item, tuple) else [int(item)]


def _list(items: Sequence[int]) -> list[int]:
    return [len(items), *items]
