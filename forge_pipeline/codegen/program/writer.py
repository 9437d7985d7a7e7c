"""From a module that TVM's virtual machine would take, and a library's metadata, to the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from forge_pipeline.codegen.memory.prepack import NAME as PREPARE
from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import Function, Kind
from forge_pipeline.codegen.program.placement import place
from forge_pipeline.codegen.program.translation import Pool, tensor_of, translated
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
        origins = self._origins(name, len(function.params))
        parameters = [tensor_of(*origin, item) for origin, item in zip(origins, function.params, strict=True)]
        made = translated(name, function, parameters, self.pool)
        made.fixed = dict(sorted(fixed.items()))
        place(made, keeps_results=name == PREPARE)
        return made

    def _origins(self, name: str, count: int) -> Sequence[tuple[Kind, int]]:
        """Return what each parameter of a function is, and which."""
        if name == PREPARE:
            return [(Kind.WEIGHT, place) for place in self.raw]
        inputs = [(Kind.INPUT, place) for place in range(len(self.metadata["inputs"]))]
        weights = [(Kind.WEIGHT, place) for place in self.direct]
        prepared = range(count - len(inputs) - len(weights))
        return [*inputs, *weights, *((Kind.PREPARED, place) for place in prepared)]
