"""A table of states whose words were changed is refused, or runs within the memory that a session keeps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.decoders import counter, decoder, kept
from tests.support.hostile import ends_well, mutate
from tests.support.native import Runner


@pytest.mark.every(2)
@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["decoder", "counter"])
def test_changed_words_do_no_harm(runner: Runner, tmp_path: Path, name: str, count: int) -> None:
    library = kept(decoder(layers=1) if name == "decoder" else counter(), argument_checks=True)
    data, path = library.to_bytes(), tmp_path / "changed.so"
    path.write_bytes(data)
    assert ends_well(runner, path, "unchanged")
    ran = 0
    for seed in range(count):
        path.write_bytes(mutate(library, data, random.Random(seed)))
        ran += ends_well(runner, path, seed)
    assert ran < count
