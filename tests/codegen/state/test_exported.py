"""Decoders in the forms of exporters, whose caches a session keeps, against ONNX Runtime at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.api.load import load
from forge_pipeline.codegen.state.in_step import in_step
from forge_pipeline.codegen.verification.verify import Checks, Tolerance
from forge_pipeline.codegen.verification.verify_calls import verify_calls
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.unpacked import loaded
from tests.support.decoders import SIZE, VOCABULARY, decoder, kept
from tests.support.genai_decoders import GROUPS, genai_decoder

CHECKS = Checks(
    enabled=True, samples=2, seed=0, batch=2, extent=8, dims={},
    tolerance=Tolerance(float32=1e-4, float16=2e-2, quantized=1e-1),
)  # fmt: skip
CALLS = (6, *[1] * 20, 3, 1)
GENAI: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped, and of a window": {"softcap": 5.0, "local_window_size": 4},
    "with a sink, and told": {"sink": True, "told": True},
}


def standard(model: onnx.ModelProto) -> onnx.ModelProto:
    return load(model, dims={"b": 1}).mod


@pytest.fixture(scope="module", params=sorted(GENAI))
def made(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, onnx.ModelProto, Library]:
    model = genai_decoder(**GENAI[request.param])
    return model, standard(model), kept(standard(model))


def steps(library: Library, model: onnx.ModelProto, rest: Any) -> None:
    """Compare calls that go on from each other; ``rest`` gives the inputs besides tokens, by how many there are."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    past = [port for port in session.get_inputs() if port.name.startswith("past")]
    held = {port.name: np.zeros((1, port.shape[1], 0, SIZE), np.float32) for port in past}
    engine, total, random = loaded(library, threads=1), 0, np.random.default_rng(0)
    for count in CALLS:
        ids, total = random.integers(0, VOCABULARY, (1, count)), total + count
        name = session.get_inputs()[0].name
        wanted, *now = session.run(None, {name: ids, **rest(total), **held})
        held = dict(zip(held, now, strict=True))
        (found,) = engine(ids)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert engine.length == total


@pytest.mark.every(6)
def test_attention_of_a_group_is_kept_in_step(made: tuple[onnx.ModelProto, onnx.ModelProto, Library]) -> None:
    model, _, library = made

    def rest(total: int) -> dict[str, np.ndarray]:
        if model.graph.input[1].name == "attention_mask":
            return {"attention_mask": np.ones((1, total), np.int64)}
        return {"seqlens_k": np.array([total - 1], np.int32), "total_sequence_length": np.array(total, np.int32)}

    assert [row["name"] for row in library.metadata["inputs"]] == ["input_ids"]
    steps(library, model, rest)


@pytest.mark.every(6)
def test_no_cache_is_copied(made: tuple[onnx.ModelProto, onnx.ModelProto, Library]) -> None:
    engine = loaded(made[2], threads=1)
    engine(np.ones((1, 9), np.int64))
    calls = {row.name: row.calls for row in engine.profile(np.ones((1, 1), np.int64), runs=1)}
    for kernel, count in (("append", 2), ("cached_attention", 1)):
        assert sum(calls[name] for name in calls if name.startswith(kernel)) == count
    assert not any("softmax" in name or "gather_elements" in name for name in calls)


@pytest.mark.every(6)
def test_the_check_says_what_callers_do_not(made: tuple[onnx.ModelProto, onnx.ModelProto, Library]) -> None:
    report = verify_calls(made[1], made[2], CHECKS, float16=False)
    assert report["error"]["logits"] < 1e-5


def test_what_a_session_knows_is_not_asked_for() -> None:
    roles = {"told": {"seqlens_k": "last", "total_sequence_length": "total"}, "mask": {"attention_mask": "ones"}}
    for told in (False, True):
        found = in_step(standard(genai_decoder(told=told)))
        assert found.told == roles["told" if told else "mask"]
        names = [value.name for value in found.model.graph.input]
        assert names == ["input_ids", "past_key_values.0.key", "past_key_values.0.value"]
        dims = [dim.dim_param or dim.dim_value for dim in found.model.graph.input[1].type.tensor_type.shape.dim]
        assert dims == [1, GROUPS, "past", SIZE]


def test_a_model_without_caches_stays_as_it_is() -> None:
    model = decoder()
    del model.graph.output[1:]
    found = in_step(model)
    assert found.model == model
    assert not found.told


def test_rows_of_which_nothing_counts_are_zero_where_the_model_says_so() -> None:
    """torch guards a softmax by IsNaN; of the first two tokens nothing counts here."""
    model = decoder(layers=1, guarded=True)
    steps(kept(model), model, lambda total: {})
