"""One library for several CPUs: which variant opens, that it computes what the plain one does, and what is refused."""

from __future__ import annotations

import os
import platform
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.content import in_memory
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.errors import ArtifactError, ConfigError, MachineError
from forge_pipeline.runtime.bundle import FOOTER, Library
from forge_pipeline.runtime.variants import combine
from forge_pipeline.stages import encrypt
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from forge_runtime.secret import Secret
from tests.support.mutants import VALUES
from tests.support.native import HERE, TILED, Runner, built, mended

FAMILIES: dict[str, tuple[str, ...]] = {
    "x86_64": ("x86-64/v2", "x86-64/v3", "x86-64/v4"),
    "aarch64": ("arm/generic", "raspberry-pi/5", "arm/neoverse-v1"),
}
TAGS: tuple[str, ...] = FAMILIES.get(platform.machine(), ())
FLAG = {"x86_64": b"lahf_lm\0", "aarch64": b"asimd\0"}.get(platform.machine(), b"")
"""One that all of them need."""
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
IDENTITY = {"uuid": "6f0c4f6e-0000-4000-8000-000000000000", "fingerprint": "f" * 64, "tools": {}}
ROW = 96

pytestmark = pytest.mark.skipif(not TAGS, reason="no CPUs of several levels are described for this machine")


@pytest.fixture(scope="module")
def libraries() -> list[Library]:
    """The same product for each, the least demanding first."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 8] x) => (float[n, 1024] y) {
        a = MatMul(x, w)
        b = Add(a, c)
        y = Tanh(b)
    }"""
    model = onnx.parser.parse_model(text)
    arrays = {
        "w": np.arange(8192, dtype="f").reshape(8, 1024) / 4096,
        "c": np.arange(1024, dtype="f").reshape(1, 1024) / 1000,
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = [build(model, Target.from_tag(tag), TILED) for tag in TAGS]
    return [
        replace(library, metadata={**library.metadata, **IDENTITY, "stage_key": str(index) * 64})
        for index, library in enumerate(made)
    ]


@pytest.fixture(scope="module")
def file(libraries: list[Library]) -> bytes:
    return combine(libraries).file


def runnable(libraries: list[Library]) -> list[Library]:
    """Return those that this machine runs, as their plain files say."""
    found = []
    for library in libraries:
        try:
            Engine(library.to_bytes())
        except MachineError:
            continue
        found.append(library)
    return found


def tag_of(engine: Engine) -> str:
    tag: str = engine.metadata["target"]["tag"]
    return tag


def test_the_best_that_this_cpu_runs_is_opened(libraries: list[Library], file: bytes, tmp_path: Path) -> None:
    best = runnable(libraries)[-1]
    path = tmp_path / "model_library.so"
    path.write_bytes(file)
    for source in (file, path):
        engine = Engine(source)
        assert tag_of(engine) == best.metadata["target"]["tag"]
        np.testing.assert_array_equal(engine(X)[0], Engine(best.to_bytes())(X)[0])


def test_each_variant_computes_what_its_plain_library_does(libraries: list[Library], file: bytes) -> None:
    for library in runnable(libraries):
        tag = library.metadata["target"]["tag"]
        engine = Engine(file, variant=tag)
        assert tag_of(engine) == tag
        np.testing.assert_array_equal(engine(X)[0], Engine(library.to_bytes())(X)[0])


def test_where_a_cpu_lacks_what_the_best_needs_the_next_is_opened(libraries: list[Library], file: bytes) -> None:
    best, *_, second = [runnable(libraries)[-1], *runnable(libraries)[:-1]]
    if best is second:
        pytest.skip("this machine runs one of them")
    lacking = replace(best, program=bytes(best.program).replace(FLAG, FLAG.replace(b"a", b"q")))
    others = [library for library in libraries if library is not best]
    assert tag_of(Engine(combine([lacking, *others]).file)) == second.metadata["target"]["tag"]


def test_a_cpu_that_runs_none_is_told_what_it_lacks(libraries: list[Library]) -> None:
    lacking = [
        replace(library, program=bytes(library.program).replace(FLAG, FLAG.replace(b"a", b"q")))
        for library in libraries[:2]
    ]
    with pytest.raises(MachineError, match="found a CPU without"):
        Engine(combine(lacking).file)


def test_a_name_that_is_not_there_is_refused(libraries: list[Library], file: bytes) -> None:
    with pytest.raises(ConfigError, match="variant: expected one that the library has, found x86-64/v9"):
        Engine(file, variant="x86-64/v9")
    with pytest.raises(ConfigError, match="variant: expected a library that has some"):
        Engine(runnable(libraries)[0].to_bytes(), variant=TAGS[0])


def test_weights_that_are_packed_alike_are_there_once(libraries: list[Library]) -> None:
    same = libraries[0]
    other = replace(same, metadata={**same.metadata, "target": _renamed("again")})
    weights, both = bytes(in_memory(same.weights)), combine([same, other]).file
    places = [row["offset"] for row in same.metadata["weights"]]
    assert places
    for place in places:
        assert both.count(weights[place : place + 256]) == 1


def _renamed(tag: str) -> dict[str, Any]:
    target = Target.from_tag(TAGS[0])
    return {"tag": tag, "triple": target.triple, "cpu_flags": list(target.cpu_flags)}


def test_their_order_changes_no_byte(libraries: list[Library], file: bytes) -> None:
    assert combine(libraries[::-1]).file == file


@pytest.mark.parametrize(
    ("changed", "found"),
    [({"fingerprint": "e" * 64}, "fingerprint differ"), ({"inputs": []}, "inputs differ")],
)
def test_another_model_is_refused(libraries: list[Library], changed: dict[str, Any], found: str) -> None:
    other = replace(libraries[1], metadata={**libraries[1].metadata, **changed})
    with pytest.raises(ConfigError, match=found):
        combine([libraries[0], other])


def test_what_takes_a_library_for_one_cpu_says_that_this_is_none(file: bytes) -> None:
    with pytest.raises(ArtifactError, match="one with variants for several"):
        Library.from_bytes(file)


def test_one_password_opens_all_of_it(libraries: list[Library]) -> None:
    kdf = Kdf(memory_kib=19 << 10, passes=1, lanes=1)
    config = encrypt.Config(method="password", key_ref="test", chunk_kib=64, kdf=kdf)
    sealed = encrypt.seal(config, combine(libraries), Secret(b"correct horse"), os.urandom)
    for library in runnable(libraries):
        tag = library.metadata["target"]["tag"]
        engine = Engine(bytes(in_memory(sealed.model)), sealed.key, "correct horse", variant=tag)
        np.testing.assert_array_equal(engine(X)[0], Engine(library.to_bytes())(X)[0])


def _table(file: bytes) -> int:
    """Return where the table starts."""
    elf, weights = struct.unpack_from(">QQ", file, len(file) - FOOTER + 16)
    end = elf + -elf % 4096 + weights
    return int(end + -end % 64)


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_a_hostile_table_does_no_harm(file: bytes, tmp_path: Path, count: int) -> None:
    """Offsets and lengths of any size: refused, or within the file; nothing ends by a signal."""
    runner, path, start = Runner(built(HERE) / "forge-run"), tmp_path / "changed.so", _table(file)
    refused = 0
    for seed in range(count):
        choice, changed = random.Random(seed), bytearray(file)
        word = start + ROW * choice.randrange(len(TAGS)) + 48 + 8 * choice.randrange(6)
        (old,) = struct.unpack_from(">Q", file, word)
        near = (old + choice.choice((-64, -8, -1, 1, 8, 64))) % (1 << 64)
        struct.pack_into(">Q", changed, word, choice.choice((near, 1 << choice.randrange(64), choice.getrandbits(64))))
        path.write_bytes(mended(bytes(changed)))
        done = runner.start(path, "--size", "n=3")
        assert done.returncode in (0, 1), (seed, done.returncode, done.stderr)
        refused += done.returncode
    assert refused > 0


@pytest.mark.parametrize("variants", [0, 1, 17, 0xFFFF])
def test_a_table_with_another_number_of_rows_is_refused_or_shorter(file: bytes, variants: int) -> None:
    changed = bytearray(file)
    struct.pack_into(">H", changed, len(file) - FOOTER + 10, variants)
    if variants == 1:  # the most demanding alone
        try:
            assert tag_of(Engine(mended(bytes(changed)))) == TAGS[-1]
        except MachineError:
            return
    else:
        with pytest.raises(ArtifactError):
            Engine(mended(bytes(changed)))


def _changed(library: Library, chance: random.Random) -> Library:
    """Return the library with a value of its metadata, or a word of its program, changed."""
    if chance.random() < 0.5:
        other = {**library.metadata, chance.choice(sorted(library.metadata)): chance.choice(VALUES)}
        return replace(library, metadata={name: value for name, value in other.items() if chance.random() < 0.98})
    program = bytearray(library.program)
    at = 8 * chance.randrange(len(program) // 8)
    words = (-1, 0, 1 << 20, 1 << 62, chance.randrange(1 << 16))
    program[at : at + 8] = struct.pack("<q", chance.choice(words))
    return replace(library, program=bytes(program[: chance.choice((len(program), at))]))


def test_a_library_whose_tables_are_of_another_form_is_not_joined(libraries: list[Library]) -> None:
    """Whoever mends the digest can write anything there: refused as an artifact, or joined, and never a crash."""
    chance, refused = random.Random(11), 0
    for _ in range(1000):
        try:
            combine([libraries[0], _changed(libraries[1], chance)])
        except (ArtifactError, ConfigError):
            refused += 1
    assert 100 < refused < 1000


def test_a_program_that_names_its_weights_many_times_is_not_joined(libraries: list[Library]) -> None:
    """Each time they would be read through."""
    library = libraries[1]
    size = len(in_memory(library.weights))
    program = bytes(64) + struct.pack("<2q", 0, 100_000) + struct.pack("<2q", 0, size) * 100_000
    with pytest.raises(ArtifactError, match="one whose tables are of another form"):
        combine([libraries[0], replace(library, program=program)])
