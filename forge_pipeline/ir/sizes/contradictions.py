"""Inputs that a file gives one extent by name, though the model computes with sizes that differ.

Exporters name axes by a table that somebody wrote. A mask of samples that shares its name with the frames that the
model makes of them, or a mask of all tokens with the new ones, is a model that no call of general sizes fits. ONNX
Runtime looks at no names; here they are what sizes are, so the input that is named wrongly gets a name of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Final

from onnx import ModelProto, ValueInfoProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import Canonical, by_reference
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.facts import Constraint
from forge_pipeline.ir.sizes.solving import solutions
from forge_pipeline.ir.values import unused

_LEAST: Final = 2
"""Of an extent that is tried: 1 goes with much that is not meant."""
_SIZES: Final = (
    range(_LEAST, 4097),
    (*range(_LEAST, 34), 48, 64, 96, 100, 128, 224, 256, 384, 512, 768, 1000, 1024, 1500, 2048, 4096, 16000),
    (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 768, 1000, 4096, 16000),
)
"""What extents are tried with, where a demand has one, two or three."""
_TRIALS: Final = 64
Renamed = Mapping[tuple[str, int], str]
"""Names of open extents, by input and axis."""


def told_apart(form: Canonical) -> tuple[Canonical, Renamed]:
    """Return ``form`` with a name of its own for an extent that another input has as well, if nothing else fits.

    It is as it was where its names contradict nothing, or where no one input is at fault.
    """
    shared = _shared(form.skeleton)
    if not shared:
        return form, {}
    model = by_reference(form)
    if not _contradictions(model):
        return form, {}
    for renamed in islice(_candidates(model, shared), _TRIALS):
        _rename(model, renamed)
        if not _contradictions(model):
            skeleton = ModelProto()
            skeleton.CopyFrom(form.skeleton)
            _rename(skeleton, renamed)
            return replace(form, skeleton=skeleton), renamed
        model = by_reference(form)
    return form, {}


def _shared(model: ModelProto) -> set[str]:
    """Return the names of extents that more than one input has."""
    count = Counter(name for value in model.graph.input for name in {text for _, text in _names(value)})
    return {name for name, inputs in count.items() if inputs > 1}


def _names(value: ValueInfoProto) -> Iterator[tuple[int, str]]:
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_param:
            yield axis, dim.dim_param


def _candidates(model: ModelProto, shared: set[str]) -> Iterator[Renamed]:
    """Yield for each input, and each extent that others have as well, a name of its own; masks come behind the rest."""
    taken = {text for value in model.graph.input for _, text in _names(value)}
    for value in reversed(model.graph.input):
        for name in dict.fromkeys(text for _, text in _names(value) if text in shared):
            axes = [axis for axis, text in _names(value) if text == name]
            new = unused(f"{value.name}_{axes[0]}", set(taken), first=2)
            yield {(value.name, axis): new for axis in axes}


def _rename(model: ModelProto, renamed: Renamed) -> None:
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in renamed:
                dim.dim_param = renamed[value.name, axis]


def _contradictions(model: ModelProto) -> bool:
    """Return whether operators demand what an extent cannot keep in general."""
    try:
        return any(map(_is_contradiction, analyse(model).constraints))
    except ModelError:
        return True
    except (Overgrown, ZeroDivisionError):  # of sizes that are tried
        return False


def _is_contradiction(constraint: Constraint) -> bool:
    size, names = constraint.size, sorted(e.names(constraint.size))
    if constraint.at_least or not isinstance(size, e.Size) or len(names) > len(_SIZES):
        return False
    for atom, value in solutions(size).items():
        if atom.kind == "extent":
            if isinstance(value, int):  # one size is what the model is made for, or a branch of it
                return value < 1 and not constraint.graph
            return not any(found >= _LEAST for found in _values(value, sorted(e.names(value))))
    return all(_values(size, names))


def _values(size: Whole, names: Sequence[str]) -> Iterator[int]:
    """Yield what a size is where its extents are general ones."""
    tried = _SIZES[len(names) - 1]
    for sizes in product(tried, repeat=len(names)):
        yield e.evaluate(size, dict(zip(names, sizes, strict=True)))
