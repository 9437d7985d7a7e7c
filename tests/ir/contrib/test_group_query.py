"""GroupQueryAttention, written out: the same numbers in ONNX Runtime, for prompts, single tokens and later prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.microsoft import Arrays, assert_same_results, own, with_open_sizes

HEADS, GROUPS, SIZE = 4, 2, 16


def random_floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CALLS: dict[str, tuple[tuple[int, int, int, tuple[int, ...]], ...]] = {
    "prompt": ((2, 5, 0, (5, 5)), (1, 3, 0, (3,))),
    "prompt of rows of several lengths": ((2, 5, 0, (5, 3)), (3, 4, 0, (1, 4, 2))),
    "prompt behind an empty cache": ((2, 5, 0, (5, 4)), (1, 3, 0, (3,))),
    "prompt in a longer cache": ((2, 5, 9, (5, 4)), (1, 3, 8, (3,))),
    "token": ((2, 1, 4, (5, 5)), (3, 1, 6, (7, 7, 7))),
    "token behind rows of several lengths": ((2, 1, 4, (5, 3)), (3, 1, 6, (7, 2, 4))),
    "token in a longer cache": ((2, 1, 9, (5, 3)), (3, 1, 12, (7, 2, 4))),
    "later prompt": ((1, 3, 4, (7,)), (1, 2, 6, (8,))),
    "later prompt in a longer cache": ((1, 3, 10, (7,)), (1, 2, 12, (8,))),
}
"""Batch, new tokens, room of the cache that comes in, and tokens of each row, the new ones among them."""

FORMS: dict[str, dict[str, Any]] = {
    "bare": {},
    "scale": {"scale": 0.2},
    "window": {"local_window_size": 3},
    "window of one": {"local_window_size": 1},
    "cap": {"softcap": 1.5},
    "rotary": {"do_rotary": 1},
    "rotary of neighbours": {"do_rotary": 1, "rotary_interleaved": 1},
    "packed": {"do_rotary": 1},
    "smooth": {"smooth_softmax": 1},
    "sink": {},
    "bias": {},
    "positions": {"do_rotary": 1},
    "both ways": {"causal": 0},
    "as many heads": {},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("calls", CALLS)
def test_attention_of_groups(calls: str, form: str) -> None:
    groups = HEADS if form == "as many heads" else GROUPS
    feeds: list[Arrays] = []
    for batch, tokens, room, lengths in CALLS[calls]:
        total = max(lengths)
        feed: Arrays = {"q": random_floats(1, batch, tokens, HEADS * SIZE)}
        if form == "packed":
            feed["q"] = random_floats(2, batch, tokens, (HEADS + 2 * groups) * SIZE)
        else:
            feed["k"], feed["v"] = (random_floats(seed, batch, tokens, groups * SIZE) for seed in (3, 4))
        if calls.split(" of ")[0] != "prompt":
            feed["pk"], feed["pv"] = (random_floats(seed, batch, groups, room, SIZE) for seed in (5, 6))
        feed["lengths"] = np.array(lengths, np.int32) - 1
        feed["total"] = np.array(total, np.int32)
        if form == "bias":
            feed["bias"] = random_floats(7, batch, 1, tokens, total)
        if form == "positions":
            feed["positions"] = np.arange(batch * tokens).reshape(batch, tokens) + 2
        feeds.append(feed)
    half = SIZE // 2
    constants = {"cos": random_floats(8, 32, half), "sin": random_floats(9, 32, half), "sink": random_floats(10, HEADS)}
    if not FORMS[form].get("do_rotary"):
        del constants["cos"], constants["sin"]
    if form != "sink":
        del constants["sink"]
    given = {**feeds[0], **constants}
    order = ("q", "k", "v", "pk", "pv", "lengths", "total", "cos", "sin", "positions", "bias", "sink")
    names = [name if name in given else "" for name in order]
    outputs = ["y", "present_k", "present_v"]
    node = own("GroupQueryAttention", names, outputs, num_heads=HEADS, kv_num_heads=groups, **FORMS[form])
    assert_same_results(with_open_sizes([node], feeds, constants, outputs), feeds)


@pytest.mark.parametrize("calls", ["prompt", "token in a longer cache"])
def test_attention_of_groups_in_half_precision(calls: str) -> None:
    feeds: list[Arrays] = []
    for batch, tokens, room, lengths in CALLS[calls]:
        feed: Arrays = {"q": random_floats(11, batch, tokens, (HEADS + 2 * GROUPS) * SIZE).astype(np.float16)}
        if room:
            for name in ("pk", "pv"):
                feed[name] = random_floats(12, batch, GROUPS, room, SIZE).astype(np.float16)
        feeds.append(feed | {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(max(lengths), np.int32)})
    names = [name if name in feeds[0] else "" for name in ("q", "k", "v", "pk", "pv", "lengths", "total")]
    node = own("GroupQueryAttention", names, ["y", "k", "v"], num_heads=HEADS, kv_num_heads=GROUPS)
    outputs = [f"{name}:FLOAT16" for name in "ykv"]
    assert_same_results(with_open_sizes([node], feeds, {}, outputs), feeds, within=4e-3)
