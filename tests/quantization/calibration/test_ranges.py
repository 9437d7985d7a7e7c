"""Ranges as an artifact: deterministic bytes, no pickle, refusals for whatever is damaged."""

from __future__ import annotations

import io

import numpy as np
import pytest

from forge_pipeline.data import Feed
from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Keeper
from forge_pipeline.quantization.calibration.ranges import Ranges


def learn(net: ONNXModule, feeds: list[Feed]) -> Ranges:
    return calibrate(net, feeds, total=len(feeds), histogram_values=1 << 20)


def test_bytes_do_not_depend_on_order_or_shards(net: ONNXModule, feeds: list[Feed]) -> None:
    whole = learn(net, feeds)
    assert learn(net, feeds[::-1]).to_bytes() == whole.to_bytes()
    assert learn(net, feeds[:7]).merge(learn(net, feeds[7:])).to_bytes() == whole.to_bytes()


def test_which_samples_are_probes_does_not_depend_on_their_order(feeds: list[Feed]) -> None:
    found = []
    for order in (feeds, feeds[::-1]):
        keeper = Keeper(5 * feeds[0]["image"].nbytes)
        assert list(keeper.watch(order)) == order
        found.append([probe.digest for probe in keeper.probes])
    assert found[0] == found[1]
    assert len(found[0]) == 5


def test_bytes_are_read_back_whole(net: ONNXModule, feeds: list[Feed]) -> None:
    ranges = learn(net, feeds[:3])
    again = Ranges.from_bytes(ranges.to_bytes())
    assert again.to_bytes() == ranges.to_bytes()
    assert again.samples == 3
    assert dict(again["stem_relu"].average for _ in "x") == dict(ranges["stem_relu"].average for _ in "x")


def test_numpy_opens_the_file_without_pickle(net: ONNXModule, feeds: list[Feed]) -> None:
    with np.load(io.BytesIO(learn(net, feeds[:2]).to_bytes()), allow_pickle=False) as archive:
        row = archive["name"].tolist().index("stem_relu")
        assert archive["low"][row] == 0.0
        assert archive["histogram"][row].sum() == 2 * 8 * 8 * 8


def test_no_sample_is_in_the_file(net: ONNXModule, feeds: list[Feed]) -> None:
    content = learn(net, feeds).to_bytes()  # not compressed
    for feed in feeds:
        values = np.ascontiguousarray(feed["image"]).ravel()
        assert not any(values[at : at + 4].tobytes() in content for at in range(len(values) - 4))


def test_ranges_of_two_models_do_not_merge(net: ONNXModule, feeds: list[Feed]) -> None:
    other = net.copy()
    other.mod.graph.initializer[0].raw_data = bytes(len(other.mod.graph.initializer[0].raw_data))
    with pytest.raises(ArtifactError, match="same model and options"):
        learn(net, feeds[:2]).merge(learn(other, feeds[:2]))


def test_damage_is_refused(net: ONNXModule, feeds: list[Feed]) -> None:
    data = learn(net, feeds[:2]).to_bytes()
    for damaged in (b"", data[: len(data) // 2], b"PK\x03\x04" + data[4:100], np.zeros(3).tobytes()):
        with pytest.raises(ArtifactError, match="fix: run calibrate again"):
            Ranges.from_bytes(damaged)


def test_no_samples_are_refused(net: ONNXModule) -> None:
    with pytest.raises(DataError, match="at least one sample, found none"):
        learn(net, [])


def test_activations_that_overflow_are_refused_by_sample_and_value(net: ONNXModule, feeds: list[Feed]) -> None:
    huge = {"image": np.full((1, 3, 8, 8), 3e38, np.float32)}
    with pytest.raises(DataError) as refusal:
        learn(net, [feeds[0], huge])
    assert refusal.value.where.startswith("calibration sample 1, value ")
    assert refusal.value.found == "NaN or infinity, which the model computed from finite inputs"


def test_progress_counts_up_to_the_total(net: ONNXModule, feeds: list[Feed]) -> None:
    seen: list[tuple[int, int]] = []
    calibrate(
        net,
        feeds[:3],
        total=3,
        histogram_values=10,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
