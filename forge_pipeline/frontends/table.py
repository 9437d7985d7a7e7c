"""Which kinds of model can be read, and by what."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.kinds import KINDS, kind_of
from forge_pipeline.frontends.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import ModelProto

    from forge_pipeline.ir.tensors import ExternalData


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An ONNX model as a front end gives it, not yet checked, and what finds its external data."""

    model: ModelProto
    external: ExternalData | None
    kind: str


class Frontend(Protocol):
    """What a module of this package offers to the table."""

    read: Callable[[Source], Imported]


FRONTENDS: dict[str, str] = {
    "onnx": "forge_pipeline.frontends.onnx",
}  # kind of file -> the module that reads it


def import_model(source: Source) -> Imported:
    """Read ``source`` with the front end for what it is. Raises ModelError where there is none."""
    kind = kind_of(source.path)
    if kind not in FRONTENDS:
        raise ModelError(
            where=str(source.path),
            expected="a model that can be loaded: " + ", ".join(KINDS[name].title for name in FRONTENDS),
            found=KINDS[kind].title,
            fix=KINDS[kind].advice,
        )
    frontend: Frontend = importlib.import_module(FRONTENDS[kind])
    return frontend.read(source)
