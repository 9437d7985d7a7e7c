"""From a module that TVM's virtual machine would take, and a library's metadata, to the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from forge_pipeline.codegen.memory.prepack import NAME as PREPARE
from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import Function, Kind, Tensor
from forge_pipeline.codegen.program.placement import place
from forge_pipeline.codegen.program.translation import Pool, translated
from forge_pipeline.runtime.entries import MAIN, Entries


def program_of(module: tvm.IRModule, metadata: Mapping[str, Any]) -> Program:
    """Return the program of a library without regions. Raises CompileError for calls that no device can do."""
    writer = _Writer(module=module, metadata=metadata)
    entries = Entries.of(metadata, where="the library").rows
    functions = [writer.function(entry.function, entry.extents) for entry in entries]
    if all(entry.function != MAIN for entry in entries):
        functions.append(writer.function(MAIN, {}))
    if writer.raw:
        functions.append(writer.function(PREPARE, {}))
    pool = writer.pool
    return Program(metadata=metadata, kernels=pool.kernels, constants=bytes(pool.constants), functions=functions)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """``direct`` are the weights that entries take, ``raw`` those that `prepare` takes, by their places."""

    module: tvm.IRModule
    metadata: Mapping[str, Any]
    pool: Pool = field(default_factory=Pool)
    direct: list[int] = field(init=False)
    raw: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.metadata["weights"]
        self.direct = [place for place, row in enumerate(rows) if not row["prepare"]]
        self.raw = [place for place, row in enumerate(rows) if row["prepare"]]

    def function(self, name: str, fixed: Mapping[str, int]) -> Function:
        """Return a function of the module as the program has it."""
        function: relax.Function = self.module[name]
        parameters = self._parameters(name, function.params, fixed)
        made = translated(name, function, parameters, self.pool)
        made.fixed = dict(sorted(fixed.items()))
        place(made, keeps_results=name == PREPARE)
        return made

    def _parameters(self, name: str, variables: Sequence[relax.Var], fixed: Mapping[str, int]) -> list[Tensor]:
        """Return what a function takes: of inputs, what the interface and the fixed extents say and no more."""
        if name == PREPARE:
            return [_tensor(Kind.WEIGHT, *item) for item in zip(self.raw, variables, strict=True)]
        rows = self.metadata["inputs"]
        behind = len(rows) + len(self.direct)
        inputs = [
            Tensor(dtype=row["dtype"], shape=_extents(row["shape"], fixed), kind=Kind.INPUT, where=place)
            for place, row in enumerate(rows)
        ]
        weights = zip(self.direct, variables[len(rows) : behind], strict=True)
        prepared = enumerate(variables[behind:])
        return [
            *inputs,
            *(_tensor(Kind.WEIGHT, *item) for item in weights),
            *(_tensor(Kind.PREPARED, *item) for item in prepared),
        ]


def _extents(shape: Sequence[int | str], fixed: Mapping[str, int]) -> tuple[int | None, ...]:
    return tuple(fixed.get(extent) if isinstance(extent, str) else extent for extent in shape)


def _tensor(kind: Kind, where: int, variable: relax.Var) -> Tensor:
    """Return a tensor of known size."""
    shape = tuple(int(extent) for extent in variable.ty.shape.values)
    return Tensor(dtype=str(variable.ty.dtype), shape=shape, kind=kind, where=where)
