"""Decoders whose caches a session keeps, against ONNX Runtime, which is given them, at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.api.load import load
from forge_pipeline.codegen.state.states import states_of
from forge_pipeline.errors import CompileError, ConfigError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.unpacked import loaded
from forge_runtime.engine import Engine
from forge_runtime.errors import DataError
from tests.support.decoders import VOCABULARY, counter, decoder, kept
from tests.support.genai_decoders import genai_decoder

KINDS = {"gpt": {"groups": 4}, "llama": {"groups": 2, "rotary": True}, "one group": {"groups": 1, "rotary": True}}


class Reference:
    """ONNX Runtime, with the past that it is given."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        inputs = self.session.get_inputs()[1:]
        self.past = {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32) for port in inputs}

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        logits, *present = self.session.run(None, {"ids": ids, **self.past})
        self.past = dict(zip(self.past, present, strict=True))
        return np.asarray(logits)


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([count, seed]).integers(0, VOCABULARY, (1, count))


def agree(engine: Engine, reference: Reference, calls: Sequence[np.ndarray]) -> None:
    for ids in calls:
        wanted, (found,) = reference(ids), engine(ids)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.fixture(scope="module", params=sorted(KINDS))
def made(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, Library]:
    model = decoder(**KINDS[request.param])
    return model, kept(model, dims={"s": (1,)})


@pytest.mark.every(2)
def test_every_step_is_that_of_the_model_with_its_past(made: tuple[onnx.ModelProto, Library]) -> None:
    model, library = made
    engine = loaded(library, threads=2)
    assert [port.name for port in engine.inputs] == ["ids"]
    assert [port.name for port in engine.outputs] == ["logits"]
    kept_ones = [state.output.name for state in engine.states]
    assert kept_ones == [f"present.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    agree(engine, Reference(model), [tokens(count, at) for at, count in enumerate((5, 1, 1, 7, 1, 3, 1))])
    assert engine.length == 19


@pytest.mark.every(6)
def test_no_cache_is_copied(made: tuple[onnx.ModelProto, Library]) -> None:
    """One token is appended where the cache lies, and attention reads it there: no kernel makes another of its size."""
    engine = loaded(made[1], threads=1)
    engine(tokens(20))
    calls = {row.name: row.calls for row in engine.profile(tokens(1), runs=1)}
    for kernel, count in (("append", 4), ("cached_attention", 2)):
        assert sum(calls[name] for name in calls if name.startswith(kernel)) == count
    assert not any("softmax" in name for name in calls)
    assert engine.length == 21


@pytest.mark.every(2)
def test_sessions_know_nothing_of_each_other(made: tuple[onnx.ModelProto, Library]) -> None:
    model, library = made
    first = loaded(library, threads=1)
    second = first.session()
    references = (Reference(model), Reference(model))
    for at in range(3):
        for number, engine in enumerate((first, second)):
            agree(engine, references[number], [tokens(2 + number, 7 * at + number)])
    assert (first.length, second.length) == (6, 9)


@pytest.mark.every(2)
def test_a_prompt_is_used_again(made: tuple[onnx.ModelProto, Library]) -> None:
    model, library = made
    engine = loaded(library, threads=1)
    for last in (3, 4):
        reference = Reference(model)
        wanted = [reference(tokens(6)), reference(tokens(1, last))]
        if last == 3:
            engine(tokens(6))
        engine.truncate(6)
        (found,) = engine(tokens(1, last))
        np.testing.assert_allclose(found, wanted[1], rtol=0, atol=1e-4 * np.abs(wanted[1]).max())
    engine.reset()
    assert engine.length == 0
    agree(engine, Reference(model), [tokens(4), tokens(1)])
    with pytest.raises(ConfigError, match="expected 0 to 5, found 6"):
        engine.truncate(6)


@pytest.mark.every(2)
def test_a_full_cache_says_so_and_stays_as_it_was(made: tuple[onnx.ModelProto, Library]) -> None:
    model, library = made
    engine, reference = loaded(library, threads=1), Reference(model)
    agree(engine, reference, [tokens(30)])
    with pytest.raises(DataError, match=r"state: expected at most 32 .*, found 33\nfix: .* compile.state_max"):
        engine(tokens(3))
    assert engine.length == 30
    agree(engine, reference, [tokens(2)])


def test_states_of_one_shape_are_kept_too() -> None:
    engine = loaded(kept(counter()), threads=1)
    assert [port.name for port in engine.inputs] == ["x"]
    rows = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    for turn in range(2):
        for at, row in enumerate(rows):
            last = rows[at - 1] if at else 0
            np.testing.assert_allclose(engine(row)[0], rows[: at + 1].sum(0) - last, rtol=1e-5, atol=1e-5)
        assert engine.length == 0
        if turn == 0:
            engine.reset()


def test_pairs_that_are_named_are_kept_alone() -> None:
    engine = loaded(kept(counter(), state={"last_in": "last_out"}), threads=1)
    assert [port.name for port in engine.inputs] == ["x", "sum_in"]
    assert [port.name for port in engine.outputs] == ["y", "sum_out"]


def test_padding_would_be_kept() -> None:
    with pytest.raises(ConfigError, match="padding would be kept"):
        Engine(kept(counter()).to_bytes(), pad=True)


def test_keys_of_what_a_decoder_listens_to_are_the_callers() -> None:
    model = decoder()
    found = states_of(model, "auto", 32)
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, "frames", 4])
        for name in ("past.9.encoder.key", "present.9.encoder.key")
    ]
    model.graph.input.append(ports[0])
    model.graph.output.append(ports[1])
    model.graph.node.append(onnx.helper.make_node("Identity", [ports[0].name], [ports[1].name]))
    assert states_of(model, "auto", 32) == found
    assert len(found) == 4
    with pytest.raises(CompileError, match="a Concat that puts new entries behind"):
        states_of(model, {ports[0].name: ports[1].name}, 32)


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        ({"nobody": "y"}, ConfigError, "inputs of the model: x, sum_in, last_in, found 'nobody'"),
        ({"x": "nothing"}, ConfigError, "outputs of the model"),
        ({"x": "y", "sum_in": "y"}, ConfigError, "an output of its own"),
        ({"x": "y", "sum_in": "sum_out", "last_in": "last_out"}, ConfigError, "an output that callers get"),
        ("yes", ConfigError, "auto, null"),
    ],
)
def test_names_that_are_wrong_are_refused(wanted: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        states_of(counter(), wanted, 32)  # type: ignore[arg-type]


def test_a_batch_that_is_open_is_refused() -> None:
    model = genai_decoder()
    with pytest.raises(CompileError, match=r"numbers along the others.*\nfix: .*model.dims=\{batch: 1\}"):
        kept(load(model).mod)


def test_objects_and_stock_kernels_are_refused() -> None:
    for options in ({"relocatable": True}, {"generator": "stock"}):
        with pytest.raises(CompileError, match="by the tiled generator"):
            kept(counter(), **options)
