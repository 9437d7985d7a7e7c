"""The machine code of kernels in objects, known by the digest of what they are made of: their TIR.

A kernel that is there already, of another entry, model or target, is not made again. Its name is no part of it where
the linker can give it one: kernels are numbered, and what is number 7 in one model is number 9 in the next. LLVM takes
some time for an object however small, so that the small ones of a library share one.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from forge_pipeline.codegen.memory.stack import deepest
from forge_pipeline.codegen.shelf import Shelf
from forge_pipeline.codegen.tir.lowering import local_buffers, pipeline
from forge_pipeline.codegen.tir.lowering.argument_checks import CALLER
from forge_pipeline.digest import digest_bytes
from forge_pipeline.width import cores

NAME = "global_symbol"
ANONYMOUS = "kernel_"
"""What the name of a kernel begins with that is called by its digest."""
SMALL = 1 << 14
"""Characters of TIR in JSON below which a kernel has no object of its own: LLVM would take as long for nothing."""
THREADS = 8
"""At most: each of them holds a kernel in LLVM's form, and other builds run beside this one."""
NO_PROGRAM = digest_bytes(b"the digest of the program that calls these kernels")
"""What stands for that digest until it is known, so that objects do not depend on it."""
_HEAD = struct.Struct("<QQ")
_NUMBERS = frozenset({"ndim", "kind", "iter_type", "data_alignment", "offset_factor", "purity"})
"""The fields of TVM's graphs in JSON that are no places of nodes."""

Compiling = Callable[[], AbstractContextManager[tvm.target.Target]]
"""Enters what kernels are compiled in, and gives the target; each thread enters it for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelObject:
    """``elf``: a relocatable object, in the target's format.

    ``workspace``: bytes that a kernel in it asks its runtime for at most; ``stack``: bytes that one takes of it,
    counted where somebody has to set it aside. ``assembly``: where it was asked for.
    """

    elf: bytes
    workspace: int
    stack: int
    assembly: str = ""

    def to_bytes(self) -> bytes:
        """Return it as it is kept."""
        return _HEAD.pack(self.workspace, self.stack) + self.elf

    @classmethod
    def of(cls, kept: bytes) -> KernelObject:
        """Return what was kept."""
        workspace, stack = _HEAD.unpack_from(kept)
        return cls(elf=kept[_HEAD.size :], workspace=workspace, stack=stack)

    def called_by(self, program: str) -> KernelObject:
        """Return it with the digest of the program that calls the kernels, if it is the one that says so."""
        return replace(self, elf=self.elf.replace(bytes.fromhex(NO_PROGRAM), bytes.fromhex(program)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelObjects:
    """All kernels of a library: ``objects``, no two alike, and by its name the symbol of each that is called so."""

    objects: Sequence[KernelObject]
    names: Mapping[str, str]

    @property
    def workspace(self) -> int:
        """Bytes that a kernel asks its runtime for at most."""
        return max((made.workspace for made in self.objects), default=0)

    @property
    def stack(self) -> int:
        """Bytes of stack that a kernel takes at most: none of them calls another."""
        return max((made.stack for made in self.objects), default=0)

    @property
    def assembly(self) -> str:
        """The assembly of all kernels, as far as it was asked for."""
        return "\n\n".join(made.assembly for made in self.objects)

    def written(self, folder: Path) -> list[Path]:
        """Write the objects into ``folder``, and return their files in their order."""
        paths = [folder / f"{number}.o" for number in range(len(self.objects))]
        for path, made in zip(paths, self.objects, strict=True):
            path.write_bytes(made.elf)
        return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A kernel to be made: ``digest`` is that of all that its code depends on, ``size`` that of its TIR."""

    function: tirx.PrimFunc
    symbol: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes machine code in threads.

    ``settings`` is what that depends on beside the kernel: the target, and how ``compiling`` compiles for it.
    ``renames``: kernels are called by their digests, and the linker gives them their names. ``counts_stack`` reads it
    off the assembly, which ``shows`` keeps: what is on the ``shelf`` has none.
    """

    compiling: Compiling
    settings: str
    renames: bool
    counts_stack: bool
    shows: bool
    shelf: Shelf | None

    def make(self, kernels: Mapping[str, tirx.PrimFunc]) -> KernelObjects:
        """Return the objects of ``kernels``, by their names in code. Raises what TVM raises for one of them."""
        named = {name: self._kernel(name, function) for name, function in kernels.items()}
        units = _units({kernel.digest: kernel for kernel in named.values()}.values())
        shelf = None if self.shows else self.shelf
        taken = {} if shelf is None else shelf.take(list(units))
        missing = {digest: unit for digest, unit in units.items() if digest not in taken}
        made = dict(zip(missing, self._all_of(list(missing.values())), strict=True))
        if shelf is not None and made:
            shelf.keep({digest: each.to_bytes() for digest, each in made.items()})
        objects = (made[digest] if digest in made else KernelObject.of(taken[digest]) for digest in units)
        program = next(
            (function.attrs[CALLER] for function in kernels.values() if CALLER in function.attrs), NO_PROGRAM
        )
        return KernelObjects(
            objects=[each.called_by(program) for each in objects],
            names={name: kernel.symbol for name, kernel in named.items() if name not in (kernel.symbol, CALLER)},
        )

    def _kernel(self, name: str, function: tirx.PrimFunc) -> _Kernel:
        if name == CALLER:
            function = function.with_attr(CALLER, NO_PROGRAM)
        graph = tvm.ir.save_json(function.without_attr(NAME) if self.renames else function)
        digest = digest_bytes(json.dumps([self.settings, without_names(graph)]).encode())
        symbol = ANONYMOUS + digest[:32] if self.renames else name
        return _Kernel(function=function.with_attr(NAME, symbol), symbol=symbol, digest=digest, size=len(graph))

    def _all_of(self, units: Sequence[Sequence[_Kernel]]) -> list[KernelObject]:
        with tempfile.TemporaryDirectory(prefix="forge-objects-") as folder:
            paths = [Path(folder) / f"{number}.o" for number in range(len(units))]
            pool = ThreadPoolExecutor(min(THREADS, cores()))
            try:
                return list(pool.map(self._object, units, paths))
            finally:
                pool.shutdown(cancel_futures=True)  # of one that cannot be made, the others are for nothing

    def _object(self, unit: Sequence[_Kernel], path: Path) -> KernelObject:
        module = tvm.IRModule({kernel.symbol: kernel.function for kernel in unit})
        with self.compiling() as machine, local_buffers.workspaces() as sizes:
            code: Any = tvm.tirx.build(module, machine, pipeline.PIPELINE)
        code.write_to_file(str(path), "obj")
        assembly = str(code.inspect_source("s")) if self.counts_stack or self.shows else ""
        return KernelObject(
            elf=path.read_bytes(),
            workspace=max(sizes, default=0),
            stack=deepest(assembly) if self.counts_stack else 0,
            assembly=assembly if self.shows else "",
        )


def _units(kernels: Iterable[_Kernel]) -> dict[str, list[_Kernel]]:
    """Return what becomes an object each, by the digest of that: first the small kernels, whatever their order."""
    small: list[_Kernel] = []
    units = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.digest):
        if kernel.size < SMALL:
            small.append(kernel)
        else:
            units[kernel.digest] = [kernel]
    together = digest_bytes("\n".join(kernel.digest for kernel in small).encode())
    return {together: small, **units} if small else units


def without_names(graph: str) -> list[Any]:
    """Return the nodes of a graph that TVM wrote as JSON, less the names of variables, which are those of values.

    A node refers to others by their places: names are for people. A string stays that something else may refer to.
    """
    nodes: list[Any] = json.loads(graph)["nodes"]
    variables = [node["data"] for node in nodes if node["type"] == "ir.Var"]
    names = {data.pop("name") for data in variables}
    elsewhere: set[Any] = set()
    for node in nodes:
        data = node.get("data")
        if isinstance(data, list):
            elsewhere.update(data)
        elif isinstance(data, dict):
            elsewhere.update(value for field, value in data.items() if field not in _NUMBERS)
    for place in names - elsewhere:
        nodes[place]["data"] = ""
    return nodes
