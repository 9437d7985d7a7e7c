"""Sizes for the open extents of a model that nobody has named any for, likely ones first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from onnx import ValueInfoProto

from forge_pipeline.ir.dims import open_extents, resolved
from forge_pipeline.passes.verification.samples import dim_symbol

SMALL: Final = (3, 1, 2, 4, 8, 16, 32, 64, 128, 224, 256)
MULTIPLES: Final = (96, 160, 192, 320, 384, 416, 448, 480, 512, 640, 24, 48, 80)
"""Sizes of images and sequences that networks with strides of 16 and 32, or windows, are built for."""
LONG: Final = (256, 512, 64, 4096)
"""Sizes of one extent where all others are one: a stretch of sound, and a state beside it."""
TRIED: Final = 96
"""Choices of sizes that are tried before it is said that there are none."""


Choice = tuple[int, int, dict[str, int]]
"""Sizes of all extents that lead an input, of all others, and of those that are apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferred:
    """Sizes to begin with: of a leading extent, of any other, and of some by name, which are kept."""

    batch: int = 2
    extent: int = SMALL[0]
    given: Mapping[str, int] = field(default_factory=dict)


def candidates(inputs: list[ValueInfoProto], preferred: Preferred) -> Iterator[dict[str, int]]:
    """Yield at most TRIED choices of a size for each open extent of ``inputs``.

    The preferred sizes come first; then one size for all extents that lead no input, and one for all extents; then each
    extent apart from the others: twice as much, more by one, one, less by one; each long where all others are one; then
    multiples of 16, and ones, which go with any size and so say least. Extents whose names are expressions of others
    follow from these.
    """
    leading, other = _free(inputs, preferred.given)
    names = {dim_symbol(value, axis) for value in inputs for axis in range(len(value.type.tensor_type.shape.dim))}

    def chosen(batch: int, size: int, apart: Mapping[str, int]) -> dict[str, int]:
        sizes = dict.fromkeys(other, size) | dict.fromkeys(leading, batch) | dict(apart) | dict(preferred.given)
        known = {name: resolved(name, sizes, set(sizes)) for name in names}
        return sizes | {name: size for name, size in known.items() if isinstance(size, int)}

    if not leading and not other:
        yield chosen(1, 1, {})
        return
    batches = tuple(dict.fromkeys((preferred.batch, 2, 1)))
    several = (preferred.extent, *(size for size in SMALL if size > 1))
    together: Iterator[Choice] = chain(
        ((batch, size, {}) for batch in batches for size in several),
        ((size, size, {}) for size in SMALL[2:5]),
    )
    apart: Iterator[Choice] = (
        (preferred.batch, size, {name: varied})
        for size in (preferred.extent, 4)
        for name in (*other, *leading)
        for varied in (2 * size, size + 1, 1, size - 1)
    )
    alone: Iterator[Choice] = ((1, 1, {name: size}) for size in LONG for name in (*other, *leading))
    ones: Iterator[Choice] = ((batch, 1, {}) for batch in batches)
    tried: list[dict[str, int]] = []
    for batch, size, changed in chain(
        together,
        islice(apart, TRIED // 3),
        islice(alone, TRIED // 6),
        ((1, size, {}) for size in MULTIPLES),
        ones,
    ):
        if min((batch, size, *changed.values())) < 1:
            continue
        sizes = chosen(batch, size, changed)
        if sizes not in tried and len(tried) < TRIED and min(sizes.values()) > 0:
            tried.append(sizes)
            yield sizes


def _free(inputs: list[ValueInfoProto], given: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the extents to choose sizes for: those that lead an input and stand nowhere else, and the others."""
    named = set(open_extents(inputs))
    leading: list[str] = []
    other: list[str] = []
    for value in inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            symbol = dim_symbol(value, axis)
            if not dim.HasField("dim_value") and symbol not in given and (not dim.dim_param or symbol in named):
                (other if axis else leading).append(symbol)
    return [name for name in dict.fromkeys(leading) if name not in other], list(dict.fromkeys(other))
