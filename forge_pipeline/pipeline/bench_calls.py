"""What `bench` times of a library that keeps states: a prompt, and a token behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from forge_pipeline.errors import ConfigError
from forge_pipeline.ir.sizes.keeping import call_sizes, keeping

PROMPT: Final = 64
"""Tokens of a prompt, where nothing else is asked for and there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """``files`` have the calls of a session by input, the last of which is timed; it has so many ``tokens``."""

    name: str
    files: Mapping[str, Path]
    tokens: int


def timed_calls(metadata: Mapping[str, Any], folder: Path, sizes: Mapping[str, int], prompt: int | None) -> list[Timed]:
    """Write the calls that are timed of a library with ``metadata``: a prompt, and a token behind it.

    Whole numbers are ones, others random. Raises ConfigError where the library takes no such calls.
    """
    states = metadata["states"]
    most = min((int(row["max"]) for row in states if row["max"]), default=PROMPT + 1)
    length = next((str(row["input"]["shape"][0]) for row in states if row["max"]), None)
    count = min(PROMPT, most - 1) if prompt is None else prompt
    calls = [_call(metadata, {**sizes, **({length: before} if length else {})}, before, tokens)
             for before, tokens in ((0, count), (count, 1))]  # fmt: skip
    made: list[Timed] = []
    for name, given, tokens in ((f"{count} tokens", calls[:1], count), (f"a token behind {count}", calls, 1)):
        files = {}
        for place, row in enumerate(metadata["inputs"]):
            files[str(row["name"])] = path = folder / f"{len(made)}-{place}.npy"
            with path.open("wb") as stream:
                for feed in given:
                    np.save(stream, feed[row["name"]])
        made.append(Timed(name=name, files=files, tokens=tokens))
    return made


def _call(metadata: Mapping[str, Any], sizes: Mapping[str, int], before: int, count: int) -> dict[str, np.ndarray]:
    named = (size for row in metadata["inputs"] for size in row["shape"] if isinstance(size, str))
    found = next(call_sizes(named, sizes, before, count, keeping(metadata["constraints"])), None)
    if found is not None:
        random, feed = np.random.default_rng(0), {}
        for row in metadata["inputs"]:
            shape, dtype = [found.get(size, size) for size in row["shape"]], np.dtype(row["dtype"])
            feed[row["name"]] = (random.normal(size=shape) if dtype.kind == "f" else np.ones(shape)).astype(dtype)
        return feed
    raise ConfigError(
        where="bench",
        expected=f"sizes that the library takes for {count} tokens behind {before}",
        found=f"none with {dict(sizes)}",
        fix="give --size NAME=N for the others, or another --prompt",
    )
