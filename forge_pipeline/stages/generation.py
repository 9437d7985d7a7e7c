"""Libraries that keep states are evaluated on calls that go on from each other: a prompt, and tokens behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.codegen.verification.verify_calls import Calls
from forge_pipeline.errors import CompileError
from forge_pipeline.evaluation.comparison import Model
from forge_pipeline.evaluation.feeds import Feeds
from forge_pipeline.ir.reference.interpreter import Interpreter

if TYPE_CHECKING:
    from forge_pipeline.data import Feed
    from forge_pipeline.ir import ONNXModule

PROMPTS: Final = (64, 32, 16, 8, 5, 3, 2, 4)
"""Tokens of a prompt, the first that ONNX Runtime takes."""
TOKENS: Final = 8
"""Calls behind it, of one token where the model takes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """``feeds`` have all inputs of the model, states among them as the float model gives them, and ``own`` are those
    that the library asks for; ``counts``: the tokens of each call."""

    feeds: Feeds
    own: Sequence[str]
    counts: Sequence[int]

    def asked(self, feed: Feed) -> Feed:
        """Return what the library asks for of a feed."""
        return {name: feed[name] for name in self.own}

    def of_library(self, model: Model) -> Model:
        """Return a library's calls as those of a model that is given all inputs."""
        return lambda feed: model(self.asked(feed))


def generation(reference: ONNXModule, metadata: Mapping[str, Any]) -> Generation:
    """Return made-up calls of a model whose library has ``metadata``; none where ONNX Runtime takes none."""
    own = [str(row["name"]) for row in metadata["inputs"]]
    interpreter = Interpreter(reference.light, where="float model")
    calls = Calls(model=reference.light, metadata=metadata, dims={}, seed=0, reference=interpreter)
    try:
        room = [count for count in PROMPTS if calls.most is None or count + TOKENS <= calls.most]
        made, _, _ = calls.made(room or PROMPTS, 1 + TOKENS)
    except CompileError as refusal:
        nothing = Feeds(feeds=[], labels=None, origin="none", missing=refusal.found)
        return Generation(feeds=nothing, own=own, counts=())
    first, *others = calls.counts
    origin = f"a call of {first} tokens and {len(others)} that go on from it, made up"
    return Generation(
        feeds=Feeds(feeds=list(map(dict, made)), labels=None, origin=origin), own=own, counts=calls.counts
    )
