"""What goes into an importer and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from onnx import ModelProto


Dtype = Literal[
    "float16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64"
]  # what PyTorch computes with and NumPy can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """An input as the user declares it, for files that do not say: conf/model/*.yaml, `inputs`.

    A symbol in ``shape`` is a dimension that stays open; the same symbol is the same size everywhere.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: Dtype = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an importer may take: bytes of memory (and of any file it writes), seconds on the clock."""

    memory: int
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A model in ONNX as an importer gives it, and what is worth knowing about how (plain JSON, deterministic)."""

    model: ModelProto
    notes: Mapping[str, Any] = field(default_factory=dict)


class Importer(Protocol):
    """What the module of a front end offers; it is called in a process of its own and nowhere else."""

    def convert(self, path: Path, inputs: tuple[Declared, ...], **options: Mapping[str, int]) -> Converted:
        """Return the model in ``path`` as ONNX. Raises ModelError for what is unsafe, damaged or unsupported.

        ``options``: `sizes`, sizes of open extents by name, for the importers that use them (``Frontend.sizes``).
        """
