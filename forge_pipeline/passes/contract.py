"""What a pass is: requires -> call -> ensures, and how what it did is to be verified.

Importing this module imports no framework; neither does the table of passes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError
from forge_pipeline.passes.errors import PassError

if TYPE_CHECKING:
    import numpy as np

    from forge_pipeline.passes.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """``conf/fold/*.yaml``, section ``verify``.

    ``rtol`` and ``atol`` bound what a pass may change that does not state its own (see contract.Tolerance);
    ``samples`` inputs are generated from ``seed``; ``dims`` gives symbolic dimensions a size by name, the others
    are bound to small ones.
    """

    rtol: float
    atol: float
    samples: int
    seed: int
    dims: dict[str, int]


Kind = Literal["analysis", "annotation", "transformation", "rewrite", "compose"]
Arrays = Mapping[str, "np.ndarray[Any, Any]"]
MAX_ROUNDS = 64  # of passes that are repeated: every pass below shrinks something, so this is never reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Every output keeps its bits; NaN equals NaN.

    ``specials``: inputs with NaN and infinities among them are tried too.
    """

    specials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """``|got - want| <= atol + rtol * max(|want|)`` for every element, the maximum taken over its tensor.

    Zeros of either sign are equal; NaN matches NaN only, and an infinity itself only. None stands for the value in
    the settings of the run. Models that compute in 16 bits are allowed a few units of rounding in any case, and
    where ``rtol`` is not 0, every output is allowed a multiple of what one unit of rounding in the inputs changes
    in it: a model that amplifies rounding amplifies that of its passes too.
    """

    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A named metric of the outputs against the reference outputs, or against labels, within a range."""

    name: str
    minimum: float | None = None
    maximum: float | None = None
    against: Literal["reference", "labels"] = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """Not checked by running, for the reason given; the report lists it."""

    reason: str


Verification = Equality | Tolerance | Metric | Unverified


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """The options of a pass that has none."""


Options = TypeVar("Options")


class Pass(Generic[Options]):
    """Base of all passes. Subclasses are stateless but for their options.

    ``call`` edits the graph in place and returns how many changes it made: 0 means that the graph is as it was.
    A value that keeps its name keeps its meaning: this is what lets a wrong pass be traced to a node.
    """

    kind: ClassVar[Kind]
    options_type: ClassVar[type[Any]] = NoOptions
    verification: ClassVar[Verification] = Equality()
    changes_interface: ClassVar[bool] = False
    in_bodies: ClassVar[bool] = True  # whether the graphs of If, Loop and Scan are edited too, each by itself

    def __init__(self, options: Options) -> None:
        self.options = options

    def requires(self, graph: Graph) -> None:
        """Refuse, with PassError, a graph that the pass cannot work on. By default every graph will do."""

    def call(self, graph: Graph) -> int:
        """Do the work; return the number of changes."""
        raise NotImplementedError

    def ensures(self, graph: Graph) -> None:
        """Refuse, with PassError, a result that is not what the pass promises. By default nothing is promised."""

    def inputs_after(self, inputs: Arrays) -> Arrays:
        """Return what the changed graph is fed, made from inputs of the unchanged one."""
        return inputs

    def inputs_before(self, inputs: Arrays) -> Arrays:
        """Return what the unchanged graph is fed where the changed one is fed ``inputs``."""
        return inputs

    def outputs_before(self, outputs: Sequence[np.ndarray[Any, Any]]) -> Sequence[np.ndarray[Any, Any]]:
        """Return the changed graph's outputs as the unchanged one would have given them."""
        return outputs


class Analysis(Pass[Options]):
    """Looks at the graph and records findings in ``graph.findings``; changes nothing."""

    kind: ClassVar[Kind] = "analysis"


class Annotation(Pass[Options]):
    """Adds facts to the graph (types, ranges) that no operator reads; what is computed stays, bit by bit."""

    kind: ClassVar[Kind] = "annotation"


class Transformation(Pass[Options]):
    """Changes how the outputs are computed."""

    kind: ClassVar[Kind] = "transformation"


class ComposePass(Transformation[Options]):
    """Several passes as one, again and again until none of them changes anything; verified as a whole."""

    kind: ClassVar[Kind] = "compose"

    def passes(self) -> Sequence[Pass[Any]]:
        """Return the parts, in order; each changes no interface."""
        raise NotImplementedError

    def call(self, graph: Graph) -> int:
        """Go round until nothing changes. Raises PassError where two parts undo each other."""
        parts, total = self.passes(), 0
        for _ in range(MAX_ROUNDS):
            changes = 0
            for part in parts:
                part.requires(graph)
                made = part.call(graph)
                if made:
                    graph.forget_types()
                    part.ensures(graph)
                changes += made
            total += changes
            if not changes:
                return total
        raise endless(f"pass {type(self).__name__}")


def endless(where: str) -> PassError:
    """Return the error about passes that go on changing the graph."""
    return PassError(
        where=where,
        expected=f"passes that come to an end within {MAX_ROUNDS} rounds",
        found="changes in every round",
        fix="two of the repeated passes undo each other: take one out",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One row of the table of passes. The class is in the module of the family, imported when the pass is used."""

    module: str
    attr: str
    group: str
    summary: str

    def load(self) -> type[Pass[Any]]:
        """Import the module and return the class."""
        loaded = getattr(importlib.import_module(self.module), self.attr, None)
        if isinstance(loaded, type) and issubclass(loaded, Pass):
            return loaded
        raise ConfigError(
            where=f"pass {self.attr!r} of {self.module}",
            expected="a subclass of forge_pipeline.passes.Pass",
            found=repr(loaded),
            fix="correct the entry point or the module's PASSES table",
        )

    def make(self, options: Mapping[str, Any], *, where: str) -> Pass[Any]:
        """Return the pass with ``options`` bound to what it declares. Raises ConfigError."""
        cls = self.load()
        return cls(bind(cls.options_type, options, where=where))


def verified(how: Verification) -> Any:
    """Class decorator: say how the pass is verified, where its configuration does not say otherwise."""

    def mark(cls: type[Pass[Any]]) -> type[Pass[Any]]:
        cls.verification = how
        return cls

    return mark
