"""Attention of com.microsoft, written out: the same numbers in ONNX Runtime, at two sizes, in every form it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import Arrays, assert_same_results, own, with_open_sizes
from tests.support.sums import assert_close

HEADS, SIZE, WIDTH = 3, 8, 24
SIZES = ((2, 5, 4), (3, 1, 7), (1, 2, 0))
"""Batch, new tokens and tokens before, of three calls."""


def random_floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ones_and_zeros(seed: int, *shape: int) -> Any:
    """Return a mask whose first element of every row is one."""
    mask = np.random.default_rng(seed).integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def mask_of(form: str, batch: int, tokens: int, keys: int) -> Any:
    """Return a mask of one of the forms that ONNX Runtime knows."""
    ends = np.arange(batch) % keys + 1
    return {
        "ends": ends.astype(np.int32),
        "ends and starts": np.concatenate([ends, ends // 2]).astype(np.int32),
        "keys": ones_and_zeros(1, batch, keys),
        "nothing": np.zeros((batch, keys), np.int32),
        "one": np.ones((batch, 1), np.int32),
        "queries": ones_and_zeros(2, batch, tokens, keys),
    }[form]


MASKS = ("", "ends", "ends and starts", "keys", "nothing", "one", "queries")


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_weights_of_its_own(mask: str, has_past: bool, causal: int) -> None:
    feeds: list[Arrays] = []
    for batch, tokens, room in SIZES:
        before = room * has_past
        feed = {"x": random_floats(3, batch, tokens, 16)}
        if mask:
            feed["mask"] = mask_of(mask, batch, tokens, before + tokens)
        if has_past:
            feed["past"] = random_floats(4, 2, batch, HEADS, before, SIZE)
        feeds.append(feed)
    constants = {"w": random_floats(5, 16, 3 * WIDTH), "b": random_floats(6, 3 * WIDTH)}
    names = ["x", "w", "b", "mask" if mask else "", "past" if has_past else ""]
    node = own("Attention", names, ["y", "present"], num_heads=HEADS, unidirectional=causal)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y", "present"]), feeds)


@pytest.mark.parametrize(
    "attributes",
    [{"qkv_hidden_sizes": [24, 24, 12]}, {"scale": 0.3}, {"mask_filter_value": -5.0, "unidirectional": 1}],
)
def test_attention_with_a_bias_of_its_scores(attributes: dict[str, Any]) -> None:
    feeds = [
        {"x": random_floats(7, b, s, 16), "mask": mask_of("keys", b, s, s), "bias": random_floats(8, b, HEADS, s, s)}
        for b, s, _ in SIZES
    ]
    width = sum(attributes.get("qkv_hidden_sizes", [3 * WIDTH]))
    constants = {"w": random_floats(9, 16, width), "b": random_floats(10, width)}
    node = own("Attention", ["x", "w", "b", "mask", "", "bias"], ["y"], num_heads=HEADS, **attributes)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("mask", ["", "ends"])
@pytest.mark.parametrize("per_column", [False, True])
def test_attention_with_a_projection_of_bytes(mask: str, has_past: bool, per_column: bool) -> None:
    random: Any = np.random.default_rng(11)
    feeds: list[Arrays] = []
    for batch, tokens, before in SIZES:
        feed: Arrays = {"x": random.integers(0, 256, (batch, tokens, 16)).astype(np.uint8)}
        if mask:
            feed["mask"] = mask_of(mask, batch, tokens, tokens + before * has_past)
        if has_past:
            feed["past"] = random_floats(12, 2, batch, HEADS, before, SIZE)
        feeds.append(feed)
    shape = (3 * WIDTH,) if per_column else ()
    constants = {
        "w": random.integers(-60, 61, (16, 3 * WIDTH)).astype(np.int8), "b": random_floats(13, 3 * WIDTH),
        "xs": np.float32(0.01), "ws": np.full(shape, 0.02, np.float32), "xz": np.uint8(120),
        "wz": np.zeros(shape, np.int8),
    }  # fmt: skip
    names = ["x", "w", "b", "xs", "ws", "mask" if mask else "", "xz", "wz", "past" if has_past else ""]
    node = own("QAttention", names, ["y", "present"], num_heads=HEADS, unidirectional=int(has_past))
    assert_same_results(with_open_sizes([node], feeds, constants, ["y", "present"]), feeds)


@pytest.mark.parametrize("mask", ["", "ends", "keys", "queries"])
@pytest.mark.parametrize("form", ["bare", "bias", "causal", "past", "past and bias", "scores"])
def test_attention_of_three_operands(form: str, mask: str) -> None:
    feeds: list[Arrays] = []
    for batch, tokens, room in SIZES:
        before = room * ("past" in form)
        keys = tokens if "past" in form or form == "causal" else tokens + 2
        feed = {
            "q": random_floats(14, batch, tokens, WIDTH),
            "k": random_floats(15, batch, keys, WIDTH),
            "v": random_floats(16, batch, keys, HEADS * 4),
        }
        if mask:
            feed["mask"] = mask_of(mask, batch, tokens, before + keys)
        if form == "scores":
            feed["scores"] = random_floats(17, 1, 1 if mask else HEADS, tokens, keys)
        if "past" in form:
            feed["pk"] = random_floats(18, batch, HEADS, before, SIZE)
            feed["pv"] = random_floats(19, batch, HEADS, before, 4)
        feeds.append(feed)
    if "past" in form:  # ONNX Runtime wants values as wide as keys there
        for feed in feeds:
            feed["v"], feed["pv"] = feed["k"][::-1].copy(), feed["pk"][::-1].copy()
    wide = WIDTH if "past" in form else HEADS * 4
    constants = {"b": random_floats(20, 2 * WIDTH + wide)} if "bias" in form else {}
    given = {**feeds[0], **constants}
    names = [name if name in given else "" for name in ("q", "k", "v", "b", "mask", "scores", "pk", "pv")]
    outputs = ["y", "present_k", "present_v"] if form != "scores" else ["y"]
    node = own("MultiHeadAttention", names, outputs, num_heads=HEADS, unidirectional=int(form == "causal"))
    assert_same_results(with_open_sizes([node], feeds, constants, outputs), feeds)


def test_attention_to_keys_of_another_model() -> None:
    feeds = [
        {
            "q": random_floats(21, b, s, WIDTH),
            "k": random_floats(22, b, HEADS, n, SIZE),
            "v": random_floats(23, b, HEADS, n, SIZE),
        }
        for b, s, n in SIZES[:2]
    ]
    node = own("MultiHeadAttention", ["q", "k", "v"], ["y"], num_heads=HEADS)
    assert_same_results(with_open_sizes([node], feeds, {}, ["y"]), feeds)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_operands_are_those_they_were_packed_from(count: int) -> None:
    """ONNX Runtime packs them for CUDA, and has no kernel on a CPU."""
    q, k, v = (random_floats(24 + place, 2, 5, HEADS, SIZE) for place in range(3))
    flat = [name.reshape(2, 5, WIDTH) for name in (q, k, v)]
    packed = {"q": np.stack([q, k, v], 3)} if count == 3 else {"q": flat[0], "k": np.stack([k, v], 3)}
    apart = dict(zip("qkv", flat, strict=True))
    models = [
        with_open_sizes([own("MultiHeadAttention", list(feed), ["y"], num_heads=HEADS)], [feed], {}, ["y"])
        for feed in (packed, apart)
    ]
    found, wanted = Interpreter(in_standard(models[0]))(packed), Interpreter(models[1])(apart)
    assert_close(found["y"], wanted["y"], within=1e-6)


@pytest.mark.parametrize("is_cross", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_of_a_single_new_token(has_mask: bool, is_cross: bool) -> None:
    feeds: list[Arrays] = []
    for batch, _, before in SIZES[:2]:
        feed = {"q": random_floats(27, batch, 1, WIDTH)}
        if is_cross:
            feed["k"], feed["v"] = (random_floats(seed, batch, HEADS, before, SIZE) for seed in (28, 29))
        else:
            feed["k"], feed["v"] = (random_floats(seed, batch, 1, WIDTH) for seed in (30, 31))
            feed["pk"], feed["pv"] = (random_floats(seed, batch, HEADS, before + 5, SIZE) for seed in (32, 33))
            feed["before"] = np.array([before], np.int32)
        if has_mask:
            feed["mask"] = mask_of("keys", batch, 1, before + (not is_cross))
        feeds.append(feed)
    constants = {} if is_cross else {"b": random_floats(34, 3 * WIDTH)}
    given = {**feeds[0], **constants}
    order = ("q", "k", "v", "mask", "scores", "pk", "pv", "before", "", "", "b")
    names = [name if name in given else "" for name in order]
    outputs = ["y"] if is_cross else ["y", "present_k", "present_v"]
    shared = int(not is_cross)
    node = own("DecoderMaskedMultiHeadAttention", names, outputs, num_heads=HEADS, past_present_share_buffer=shared)
    assert_same_results(with_open_sizes([node], feeds, constants, outputs), feeds)
