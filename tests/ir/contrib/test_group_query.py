"""GroupQueryAttention, written out: the same numbers in ONNX Runtime, for prompts, single tokens and later prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends.inspect import inspect
from forge_pipeline.frontends.source import Source
from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import Arrays, assert_same_results, own, with_open_sizes
from tests.support.sums import assert_close

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


WINDOWED: dict[str, tuple[tuple[int, int, int, tuple[int, ...]], ...]] = {
    "prompt": ((2, 3, 5, (3, 3)), (1, 4, 6, (4,))),
    "prompt longer than the cache": ((1, 9, 5, (9,)), (2, 12, 7, (12, 12))),
    "token": ((2, 1, 5, (5, 3)), (1, 1, 8, (6,))),
    "token behind what was dropped": ((2, 1, 5, (9, 14)), (3, 1, 7, (30, 7, 8))),
    "later prompt": ((1, 4, 5, (10,)), (1, 2, 7, (9,))),
}
"""Batch, new tokens, room of the cache, and tokens of each row so far, the new ones among them."""


@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("calls", WINDOWED)
def test_a_cache_of_a_window_keeps_its_size(calls: str, window: int) -> None:
    feeds: list[Arrays] = []
    for batch, tokens, room, lengths in WINDOWED[calls]:
        feed: Arrays = {"q": random_floats(21, batch, tokens, (HEADS + 2 * GROUPS) * SIZE)}
        feed |= {name: random_floats(22, batch, GROUPS, room, SIZE) for name in ("pk", "pv")}
        feeds.append(feed | {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(max(lengths), np.int32)})
    half = SIZE // 2
    constants = {"cos": random_floats(8, 32, half), "sin": random_floats(9, 32, half)}
    names = ["q", "", "", "pk", "pv", "lengths", "total", "cos", "sin"]
    attributes = {"local_window_size": window, "sliding_window_cache": 1, "do_rotary": 1}
    node = own("GroupQueryAttention", names, ["y", "k", "v"], num_heads=HEADS, kv_num_heads=GROUPS, **attributes)
    whole = with_open_sizes([node], feeds, constants, ["y", "k", "v"])
    one, other = Interpreter(whole), Interpreter(canonical_model(in_standard(whole)))
    for feed, (_, _, room, lengths) in zip(feeds, WINDOWED[calls], strict=True):
        wanted, found = one(feed), other(feed)
        for row, length in enumerate(lengths):
            assert_close(found["y"][row], wanted["y"][row], within=1e-5)
            at_once = room - window + 1
            held = length if length <= room else length - at_once * -(-(length - room) // at_once)
            for name in ("k", "v"):
                assert found[name].shape[2] == room
                assert_close(found[name][row, :, :held], wanted[name][row, :, :held], within=1e-5)


def test_queries_and_keys_of_each_head_are_normalized() -> None:
    given: Arrays = {"q": random_floats(31, 2, 5, HEADS * SIZE), "k": random_floats(32, 2, 5, GROUPS * SIZE)}
    given["v"] = random_floats(33, 2, 5, GROUPS * SIZE)
    given |= {"lengths": np.array([4, 4], np.int32), "total": np.array(5, np.int32)}
    gammas = {"gq": random_floats(34, SIZE), "gk": random_floats(35, SIZE)}
    feeds = [given, {name: array[:1, :3] if array.ndim == 3 else array[:1] if array.ndim else np.array(3, np.int32)
                     for name, array in given.items()} | {"lengths": np.array([2], np.int32)}]  # fmt: skip
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    names = ["q", "k", "v", "", "", "lengths", "total", *[""] * 7, "gq", "gk"]
    fused = own("GroupQueryAttention", names, ["y", "pk", "pv"], **attributes, q_norm_epsilon=0.25, qk_norm_epsilon=0.5)
    apart = [
        part
        for name, heads, epsilon in (("q", HEADS, 0.25), ("k", GROUPS, 0.5))
        for part in (
            helper.make_node("Reshape", [name, f"{name}split"], [f"{name}s"]),
            own("SimplifiedLayerNormalization", [f"{name}s", f"g{name}"], [f"{name}n"], epsilon=epsilon),
            helper.make_node("Reshape", [f"{name}n", f"{name}whole"], [f"{name}w"]),
        )
    ]
    for part in apart:
        part.domain = ""
    plain = own("GroupQueryAttention", ["qw", "kw", "v", "", "", "lengths", "total"], ["y", "pk", "pv"], **attributes)
    shapes = {f"{name}split": np.array([0, 0, heads, SIZE]) for name, heads in (("q", HEADS), ("k", GROUPS))}
    shapes |= {f"{name}whole": np.array([0, 0, heads * SIZE]) for name, heads in (("q", HEADS), ("k", GROUPS))}
    wanted = Interpreter(with_open_sizes([*apart, plain], feeds, gammas | shapes, ["y", "pk", "pv"]))
    found = Interpreter(canonical_model(in_standard(with_open_sizes([fused], feeds, gammas, ["y", "pk", "pv"]))))
    for feed in feeds:
        right, ours = wanted(feed), found(feed)
        for name, array in right.items():
            assert_close(ours[name], array, within=1e-5)


def test_chunks_with_padding_behind_are_refused(tmp_path: Path) -> None:
    feed: Arrays = {"q": random_floats(41, 1, 2, (HEADS + 2 * GROUPS) * SIZE)}
    feed |= {"lengths": np.array([1], np.int32), "total": np.array(2, np.int32), "chunk": np.array([1], np.int32)}
    names = ["q", "", "", "", "", "lengths", "total", *[""] * 9, "chunk"]
    node = own("GroupQueryAttention", names, ["y", "k", "v"], num_heads=HEADS, kv_num_heads=GROUPS)
    path = tmp_path / "net.onnx"
    onnx.save(with_open_sizes([node], [feed], {}, ["y", "k", "v"]), path)
    with pytest.raises(ForgeError, match=r"chunks with padding behind \(query_seqlens\)"):
        inspect(Source(path))
