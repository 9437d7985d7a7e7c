"""The functions of one library: `main` for any size, and one for each combination of sizes that the user listed.

Each is imported by itself, from a model whose extents are these numbers: what follows from them is known before the
first operator is converted. A batch of one is added to each of them later (``layout.batch_of_one``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_runtime.entries import MAIN

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model to import: ``function`` is its name in the library, ``extents`` what of it was fixed, by name."""

    function: str
    extents: Mapping[str, int]
    model: onnx.ModelProto


def entries(model: onnx.ModelProto, dims: Mapping[str, tuple[int, ...]], *, open_form: bool) -> list[Variant]:
    """Return the variants of ``model``, `main` first: the open form, unless that is left out, then as listed.

    Without an open form, the first combination is `main`. Raises ConfigError for an extent that is not open, and
    ModelError for sizes from which none follows.
    """
    from forge_pipeline.ir.dims import check, combinations, open_extents, with_sizes

    if not dims:
        return [Variant(function=MAIN, extents={}, model=model)]
    check(dims, open_extents(model.graph.input))
    found = [Variant(function=MAIN, extents={}, model=model)] if open_form else []
    for sizes in combinations(dims):
        name = f"{MAIN}_{len(found)}" if found else MAIN
        found.append(Variant(function=name, extents=sizes, model=with_sizes(model, sizes)))
    return found
