"""A list of passes, as configuration writes it down, and running it.

An entry is the name of a pass, or ``{name: {option: value, verify: {...}}}``, or ``{repeat: [entries]}``: these again
and again until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.ir.values import fed
from forge_pipeline.passes.contract import (
    MAX_ROUNDS,
    Equality,
    Metric,
    Pass,
    PassRow,
    Tolerance,
    Unverified,
    Verification,
    endless,
)
from forge_pipeline.passes.errors import PassError
from forge_pipeline.registry import Registry

if TYPE_CHECKING:
    import onnx

    from forge_pipeline.passes.graph import Graph
    from forge_pipeline.passes.verification.verify import Verifier

REPEAT = "repeat"
LEFT_OUT = "the pass was left out: ONNX Runtime loads the model without it, and not with it"
SWITCHED_OFF = "verification is switched off"
Entry = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass with its options, and how it is verified."""

    name: str
    step: Pass[Any]
    how: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Steps that are repeated until none of them changes anything."""

    steps: tuple[Plan, ...]


Plan = Step | Repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerifyOption:
    """The ``verify`` option of a pass: what is said here replaces what the pass declares."""

    how: Literal["equality", "tolerance", "metric", "none"]
    rtol: float | None = None
    atol: float | None = None
    metric: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    against: Literal["reference", "labels"] = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A line of the history: one application of one pass.

    ``operators`` says how many there are more or fewer of each; ``seconds`` is for people and not part of ``as_json``.
    """

    name: str
    changes: int
    nodes: tuple[int, int]
    operators: Mapping[str, int]
    finding: Mapping[str, Any] | None
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return what is the same on every run."""
        row: dict[str, Any] = {"pass": self.name, "changes": self.changes, "nodes": list(self.nodes)}
        if self.operators:
            row["operators"] = dict(self.operators)
        return row | ({"verification": dict(self.finding)} if self.finding is not None else {})


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The model that came out, and how."""

    model: onnx.ModelProto
    history: list[Applied] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    overall: Mapping[str, Any] | None = None
    mapped_files: tuple[Any, ...] = ()
    """The open files that constants of the model are in, if they are in files."""

    @property
    def unverified(self) -> dict[str, str]:
        """Passes that changed something that was not verified, and why."""
        return {
            row.name: row.finding["reason"] if row.finding else SWITCHED_OFF
            for row in self.history
            if (row.changes and row.finding is None) or (row.finding is not None and not row.finding["verified"])
        }


def plan(entries: Sequence[Entry], rows: Registry[PassRow], *, where: str) -> tuple[Plan, ...]:
    """Return the steps that ``entries`` ask for. Raises ConfigError, with the place, for anything misspelt."""
    return tuple(_plan(entry, rows, f"{where}[{index}]") for index, entry in enumerate(entries))


def _plan(entry: Entry, rows: Registry[PassRow], where: str) -> Plan:
    if isinstance(entry, str):
        return _step(entry, {}, rows, where)
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ConfigError(
            where=where,
            expected="the name of a pass, `name: {options}`, or `repeat: [passes]`",
            found=repr(entry),
            fix="write one pass an entry",
        )
    ((name, value),) = entry.items()
    if name == REPEAT:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ConfigError(f"{where}.repeat", "a list of passes", repr(value), "write the passes as a list")
        return Repeat(steps=plan(value, rows, where=f"{where}.repeat"))
    if name not in rows and did_you_mean(name, [REPEAT]):
        raise ConfigError(where, "a pass, or `repeat`", repr(name), did_you_mean(name, [REPEAT]) + "correct the name")
    return _step(name, {} if value is None else value, rows, where)


def _step(name: str, options: object, rows: Registry[PassRow], where: str) -> Step:
    row = rows.pick(name, where=where)
    if not isinstance(options, Mapping):
        raise ConfigError(f"{where}.{name}", "options as `key: value` lines", repr(options), "write them as a section")
    own = {key: value for key, value in options.items() if key != "verify"}
    known = {field.name for field in fields(row.load().options_type)}
    for key in own.keys() - known:
        if did_you_mean(str(key), ["verify"]):
            raise ConfigError(
                f"{where}.{name}.{key}",
                "an option of the pass, or `verify`",
                repr(key),
                "did you mean 'verify'? correct the name",
            )
    step = row.make(own, where=f"{where}.{name}")
    how = step.verification
    if "verify" in options:
        how = _how(bind(_VerifyOption, options["verify"], where=f"{where}.{name}.verify"), f"{where}.{name}.verify")
    return Step(name=name, step=step, how=how)


def _how(option: _VerifyOption, where: str) -> Verification:
    match option.how:
        case "equality":
            return Equality()
        case "tolerance":
            return Tolerance(rtol=option.rtol, atol=option.atol)
        case "metric":
            if option.metric is None or (option.minimum is None and option.maximum is None):
                raise ConfigError(where, "`metric` and a `minimum` or `maximum`", repr(option.metric), "give both")
            return Metric(name=option.metric, minimum=option.minimum, maximum=option.maximum, against=option.against)
        case _:
            return Unverified(reason="switched off in the configuration")


def apply(
    model: onnx.ModelProto,
    steps: Sequence[Plan],
    verifier: Verifier | None,
    *,
    after: Callable[[int, Outcome], None] | None = None,
    observe: Callable[[str, onnx.ModelProto], None] | None = None,
) -> Outcome:
    """Run ``steps`` over a copy of ``model``, verifying each that changes something.

    ``after`` is called after each entry with its index and the state so far, for checkpoints; ``observe`` after each
    pass that changed something, with its name and the model. ``verifier`` None verifies nothing, which the outcome
    then lists. Raises PassError and PassVerificationError.
    """
    from forge_pipeline.passes.graph import Graph

    run = _Run(graph=Graph(model), verifier=verifier, outcome=Outcome(model=model), observe=observe)
    for index, step in enumerate(steps):
        run.plan(step)
        if after is not None:
            run.outcome.model = run.current()
            after(index, run.outcome)
    run.outcome.model = run.current()
    run.outcome.findings, run.outcome.mapped_files = run.graph.findings, tuple(run.graph.mapped_files)
    run.conclude(model)
    return run.outcome


@dataclass(slots=True, kw_only=True)
class _Run:
    graph: Graph
    verifier: Verifier | None
    outcome: Outcome
    observe: Callable[[str, onnx.ModelProto], None] | None = None
    model: onnx.ModelProto | None = None

    def current(self) -> onnx.ModelProto:
        if self.model is None:
            self.model = self.graph.model()
        return self.model

    def plan(self, step: Plan) -> int:
        """Run one entry; return the number of changes."""
        if isinstance(step, Step):
            return self.step(step)
        total = 0
        for _ in range(MAX_ROUNDS):
            changes = sum(self.plan(inner) for inner in step.steps)
            total += changes
            if not changes:
                return total
        raise endless(REPEAT)

    def step(self, step: Step) -> int:
        from forge_pipeline.passes.subgraphs import apply_to_bodies

        started = perf_counter()
        before, count = self.current() if self.verifier else None, self.graph.operators()
        step.step.requires(self.graph)
        changes = step.step.call(self.graph)
        if step.step.in_bodies and not step.step.changes_interface:
            changes += apply_to_bodies(self.graph, step.step.call)
        finding: Mapping[str, Any] | None = None
        if changes:
            self.model = None
            self.graph.forget_types()
            step.step.ensures(self.graph)
            if not step.step.changes_interface:
                _same_interface(step.name, self.outcome.model, self.graph)
            if self.verifier is not None and before is not None and not self.verifier.tolerates(self.current()):
                self.graph.reset(before)
                self.model, changes = before, 0
                finding = {"verified": False, "reason": LEFT_OUT}
            elif self.verifier is not None and before is not None:
                finding = self.verifier.check(step.step, step.name, step.how, before, self.current()).as_json()
        for mapped in self.graph.mapped_files:
            mapped.release()
        now = self.graph.operators() if changes else count
        row = Applied(
            name=step.name,
            changes=changes,
            nodes=(count.total(), now.total()),
            operators={name: now[name] - count[name] for name in sorted(now | count) if now[name] != count[name]},
            finding=finding,
            seconds=perf_counter() - started,
        )
        self.outcome.history.append(row)
        if changes and step.step.changes_interface:
            self.outcome.model = self.current()
        if changes and self.observe is not None:
            self.observe(step.name, self.current())
        return changes

    def conclude(self, original: onnx.ModelProto) -> None:
        """Check what came out as a whole: valid ONNX, and still the function it was."""
        fault = _fault(self.outcome.model)
        if fault is not None:
            is_old = fault == _fault(original)
            raise PassError(
                where="the model" if is_old else "the passes' output",
                expected="a model that the ONNX checker accepts",
                found=fault,
                fix="correct the model: it was so before the first pass"
                if is_old
                else "leave out the pass that made it so; `passes bisect` finds it",
            )
        if self.verifier is not None:
            self.outcome.overall = self.verifier.conclude(self.outcome.model).as_json()


def _fault(model: onnx.ModelProto) -> str | None:
    """Return the first line of what the ONNX checker objects to."""
    import onnx

    from forge_pipeline.ir.external_data.mapped import outline

    try:
        onnx.checker.check_model(outline(model))
    except onnx.checker.ValidationError as error:
        return str(error).splitlines()[0]
    return None


def _same_interface(name: str, model: onnx.ModelProto, graph: Graph) -> None:
    now = [value for value in graph.inputs if graph.constant(value.name) is None]
    for kind, old, new in (("input", fed(model.graph), now), ("output", list(model.graph.output), list(graph.outputs))):
        if old != new:
            raise PassError(
                where=f"pass {name!r}",
                expected=f"{kind}s {', '.join(value.name for value in old)} with the types they had",
                found=", ".join(value.name for value in new) or "none",
                fix="correct the pass: only one with `changes_interface` may do that",
            )
