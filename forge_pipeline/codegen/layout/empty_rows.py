"""Rows of a softmax whose mask leaves nothing: exporters write zeros where the shares are no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tvm import relax

from forge_pipeline.codegen.layout.builder import Deferred, Graph, Value

USES_OF_BOTH = 2
"""How often shares are read that are tested, and taken where the test fails."""


@runtime_checkable
class Softmax(Deferred, Protocol):
    """A deferred value that may be shares, and can be zero where they are no numbers."""

    @property
    def is_shares(self) -> bool:
        """Whether there is a softmax."""

    def without_nan(self, call: relax.Call) -> Value:
        """Return it after ``call``, which puts zeros into rows without a column that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoShares:
    """Where ``shares`` are no numbers."""

    call: relax.Call
    shares: Value

    def emit(self, graph: Graph) -> Value:
        """Emit it as it is."""
        return graph.unchanged(self.call)


def find_nan(graph: Graph, call: relax.Call) -> Value | None:
    """Take the test of whether shares are numbers."""
    value = graph.look(call.args[0])
    if (
        isinstance(value.deferred, Softmax)
        and value.deferred.is_shares
        and graph.uses.get(call.args[0]) == USES_OF_BOTH
    ):
        return Value(deferred=NoShares(call=call, shares=value))
    return None


def choose(graph: Graph, call: relax.Call) -> Value | None:
    """Take shares that are zero where they are no numbers."""
    test, zero, shares = (graph.look(argument) for argument in call.args)
    if not isinstance(test.deferred, NoShares) or test.deferred.shares is not shares:
        return None
    if not isinstance(shares.deferred, Softmax) or zero.constant is None or zero.constant.any():
        return None
    return shares.deferred.without_nan(call) if graph.is_used_once(call.args[0]) else None


HANDLERS = {"relax.isnan": find_nan, "relax.where": choose}
