"""Blocks that values of unknown size share: each holds one value at a time, whatever their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from forge_pipeline.codegen.memory.offsets import Life


def shared(lives: Sequence[Life]) -> list[list[int]]:
    """Return which values share a block, by their places: none that are needed at once.

    The largest come first, each into the smallest block that is free then; of equal ones, into the one that was left
    last, as that is still in the caches.
    """
    blocks: list[list[int]] = []
    for index in sorted(range(len(lives)), key=lambda index: (-lives[index].size, lives[index].first)):
        life = lives[index]
        free = [block for block in blocks if not any(lives[other].meets(life) for other in block)]
        if free:
            least = min(lives[block[0]].size for block in free)
            equal = [block for block in free if lives[block[0]].size == least]
            max(equal, key=lambda block: _left(lives, block, life)).append(index)
        else:
            blocks.append([index])
    return blocks


def _left(lives: Sequence[Life], block: Sequence[int], life: Life) -> int:
    """Return when a block was left last before a value needs it."""
    return max((lives[other].last for other in block if lives[other].last < life.first), default=-1)
