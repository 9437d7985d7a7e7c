"""From a module in Relax's last form, and a library's metadata, to the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from forge_pipeline.codegen.memory.prepack import NAME as PREPARE
from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import Demands, Function, Kind, Tensor
from forge_pipeline.codegen.program.placement import place
from forge_pipeline.codegen.program.states import grow
from forge_pipeline.codegen.program.translation import Pool, translated
from forge_pipeline.codegen.regions import program as p
from forge_pipeline.errors import CompileError
from forge_runtime.entries import MAIN, Entries
from forge_runtime.library import MAX_RANK


def program_of(
    module: tvm.IRModule,
    metadata: Mapping[str, Any],
    blocks: p.Program | None = None,
    demands: Sequence[Demands] = (),
) -> Program:
    """Return the program of a library: of one function and its entries, or of ``blocks`` that call regions.

    ``demands`` are those of each region. Raises CompileError for calls that no device can do, and for arrays of more
    axes than the runtime takes.
    """
    for row in (*metadata["inputs"], *metadata["outputs"], *(row["input"] for row in metadata.get("states", ()))):
        _refuse_axes(row["name"], len(row["shape"]))
    writer = _Writer(module=module, metadata=metadata)
    functions = writer.entries() if blocks is None else writer.regions(blocks, demands)
    if writer.raw:
        functions.append(writer.function(PREPARE, writer.prepared_from(), {}))
    pool = writer.pool
    return Program(
        metadata=metadata,
        kernels=pool.kernels,
        constants=bytes(pool.constants),
        functions=functions,
        blocks=blocks,
    )


@dataclass(slots=True, kw_only=True)
class _Writer:
    """``direct`` are the weights that entries take, ``raw`` those that `prepare` takes, by their places."""

    module: tvm.IRModule
    metadata: Mapping[str, Any]
    pool: Pool = field(default_factory=Pool)
    direct: list[int] = field(init=False)
    raw: list[int] = field(init=False)

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """What a session keeps: the last inputs and results of entries."""
        states: Sequence[Mapping[str, Any]] = self.metadata.get("states", ())
        return states

    def __post_init__(self) -> None:
        rows = self.metadata["weights"]
        self.direct = [place for place, row in enumerate(rows) if not row["prepare"]]
        self.raw = [place for place, row in enumerate(rows) if row["prepare"]]

    def entries(self) -> list[Function]:
        """Return `main` and the entries beside it, in the order in which a call tries them."""
        rows = [(entry.function, entry.extents) for entry in Entries.of(self.metadata, where="the library").rows]
        if all(name != MAIN for name, _ in rows):
            rows.append((MAIN, {}))
        return [self.function(name, self._parameters(name, fixed), fixed) for name, fixed in rows]

    def regions(self, blocks: p.Program, demands: Sequence[Demands]) -> list[Function]:
        """Return the regions. An input that was made of sizes has no contents."""
        steps = [step for block in p.blocks(blocks.main) for step in block.steps]
        shapes = {step.output for step in steps if isinstance(step, p.Extents)}
        inputs = {step.region: step.inputs for step in steps if isinstance(step, p.Call)}
        made = []
        for number, (region, demanded) in enumerate(zip(blocks.regions, demands, strict=True)):
            variables = self.module[region.function].params
            given = [
                Tensor(
                    dtype=str(variable.ty.dtype),
                    shape=tuple(_known(extent) for extent in variable.ty.shape.values),
                    kind=Kind.SHAPE if value in shapes else Kind.INPUT,
                    where=place,
                )
                for place, (value, variable) in enumerate(zip(inputs[number], variables, strict=False))
            ]
            weights = [self._weight(*item) for item in zip(region.weights, variables[len(given) :], strict=True)]
            made.append(self.function(region.function, [*given, *weights], {}, demanded))
        return made

    def function(
        self, name: str, parameters: Sequence[Tensor], fixed: Mapping[str, int], demands: Demands | None = None
    ) -> Function:
        """Return a function of the module as the program has it."""
        made = translated(name, self.module[name], parameters, self.pool)
        made.fixed, made.demands = dict(sorted(fixed.items())), demands
        if self.states and name != PREPARE:
            grow(made, self.states, self.pool.kernels)
        place(made, keeps_results=name == PREPARE)
        _refuse_axes(f"a value within {name}", max((len(tensor.shape) for tensor in made.tensors), default=0))
        return made

    def prepared_from(self) -> list[Tensor]:
        """Return what `prepare` takes."""
        variables = self.module[PREPARE].params
        return [_tensor(Kind.WEIGHT, *item) for item in zip(self.raw, variables, strict=True)]

    def _parameters(self, name: str, fixed: Mapping[str, int]) -> list[Tensor]:
        """Return what a function takes: of inputs, what the interface and the fixed extents say and no more."""
        rows = [*self.metadata["inputs"], *(state["input"] for state in self.states)]
        inputs = [
            Tensor(dtype=row["dtype"], shape=_extents(row["shape"], fixed), kind=Kind.INPUT, where=place)
            for place, row in enumerate(rows)
        ]
        return [*inputs, *(self._weight(*item) for item in enumerate(self.module[name].params[len(rows) :]))]

    def _weight(self, place: int, variable: relax.Var) -> Tensor:
        """Return one of the arrays that functions take after their inputs: those as stored, then those prepared."""
        if place < len(self.direct):
            return _tensor(Kind.WEIGHT, self.direct[place], variable)
        return _tensor(Kind.PREPARED, place - len(self.direct), variable)


def _refuse_axes(what: str, count: int) -> None:
    if count > MAX_RANK:
        raise CompileError(
            where=what,
            expected=f"at most {MAX_RANK} axes",
            found=f"{count}",
            fix="merge axes that lie side by side: devices take no more",
        )


def _extents(shape: Sequence[int | str], fixed: Mapping[str, int]) -> tuple[int | None, ...]:
    return tuple(fixed.get(extent) if isinstance(extent, str) else extent for extent in shape)


def _known(extent: Any) -> int | None:
    return int(extent) if isinstance(extent, int | tirx.IntImm) else None


def _tensor(kind: Kind, where: int, variable: relax.Var) -> Tensor:
    """Return a tensor of known size."""
    shape = tuple(int(extent) for extent in variable.ty.shape.values)
    return Tensor(dtype=str(variable.ty.dtype), shape=shape, kind=kind, where=where)
