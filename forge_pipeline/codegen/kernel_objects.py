"""The machine code of each kernel as an object of its own, known by the digest of what it is made of: its TIR.

A kernel that is there already, of another entry, model or target, is not made again. Its name is no part of it where
the linker can give it one: kernels are numbered, and what is number 7 in one model is number 9 in the next.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from forge_pipeline.codegen.memory.stack import deepest
from forge_pipeline.codegen.shelf import Shelf
from forge_pipeline.codegen.tir import local_buffers
from forge_pipeline.codegen.tir.argument_checks import CALLER
from forge_pipeline.digest import digest_bytes
from forge_pipeline.width import cores

NAME = "global_symbol"
ANONYMOUS = "kernel_"
"""What the name of a kernel begins with that is called by its digest."""
THREADS = 8
"""At most: each of them holds a kernel in LLVM's form, and other builds run beside this one."""
_HEAD = struct.Struct("<QQ")
_NUMBERS = frozenset({"ndim", "kind", "iter_type", "data_alignment", "offset_factor", "purity"})
"""The fields of TVM's graphs in JSON that are no places of nodes."""

Compiling = Callable[[], AbstractContextManager[tvm.target.Target]]
"""Enters what kernels are compiled in, and gives the target; each thread enters it for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelObject:
    """``elf``: a relocatable object, in the target's format; ``symbol``: the kernel's in it.

    ``workspace``: bytes that the kernel asks its runtime for at most; ``stack``: bytes that it takes of it, counted
    where somebody has to set it aside. ``assembly``: where it was asked for.
    """

    symbol: str
    elf: bytes
    workspace: int
    stack: int
    assembly: str = ""

    def to_bytes(self) -> bytes:
        """Return it as it is kept."""
        return _HEAD.pack(self.workspace, self.stack) + self.elf

    @classmethod
    def of(cls, symbol: str, kept: bytes) -> KernelObject:
        """Return what was kept of the kernel with this symbol."""
        workspace, stack = _HEAD.unpack_from(kept)
        return cls(symbol=symbol, elf=kept[_HEAD.size :], workspace=workspace, stack=stack)


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
    """A kernel to be made: ``digest`` is that of all that its object depends on."""

    function: tirx.PrimFunc
    symbol: str
    digest: str

    @property
    def is_caller(self) -> bool:
        """Whether it is there to say of what program the others are: no other library has it."""
        return CALLER in self.function.attrs


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
        wanted = {kernel.digest: kernel for kernel in named.values()}
        shelf = None if self.shows else self.shelf
        shared = [digest for digest, kernel in wanted.items() if not kernel.is_caller]
        taken = {} if shelf is None else shelf.take(shared)
        missing = [kernel for digest, kernel in wanted.items() if digest not in taken]
        made = dict(zip((kernel.digest for kernel in missing), self._all_of(missing), strict=True))
        if shelf is not None and made:
            shelf.keep({digest: made[digest].to_bytes() for digest in shared if digest in made})
        found = {digest: KernelObject.of(wanted[digest].symbol, kept) for digest, kept in taken.items()}
        return KernelObjects(
            objects=[{**found, **made}[digest] for digest in wanted],
            names={
                name: kernel.symbol for name, kernel in named.items() if kernel.symbol != name and not kernel.is_caller
            },
        )

    def _kernel(self, name: str, function: tirx.PrimFunc) -> _Kernel:
        plain = function.without_attr(NAME) if self.renames else function
        digest = digest_bytes(json.dumps([self.settings, without_names(tvm.ir.save_json(plain))]).encode())
        symbol = ANONYMOUS + digest[:32] if self.renames else name
        return _Kernel(function=function.with_attr(NAME, symbol), symbol=symbol, digest=digest)

    def _all_of(self, kernels: Sequence[_Kernel]) -> list[KernelObject]:
        with tempfile.TemporaryDirectory(prefix="forge-objects-") as folder:
            pool = ThreadPoolExecutor(min(THREADS, cores()))
            try:
                return list(pool.map(lambda kernel: self._object(kernel, Path(folder)), kernels))
            finally:
                pool.shutdown(cancel_futures=True)  # of one that cannot be made, the others are for nothing

    def _object(self, kernel: _Kernel, folder: Path) -> KernelObject:
        module = tvm.IRModule({kernel.symbol: kernel.function})
        with self.compiling() as machine, local_buffers.workspaces() as sizes:
            code: Any = tvm.tirx.build(module, machine, local_buffers.PIPELINE)
        path = folder / f"{kernel.digest}.o"
        code.write_to_file(str(path), "obj")
        assembly = str(code.inspect_source("s")) if self.counts_stack or self.shows else ""
        elf = path.read_bytes()
        path.unlink()
        return KernelObject(
            symbol=kernel.symbol,
            elf=elf,
            workspace=max(sizes, default=0),
            stack=deepest(assembly) if self.counts_stack else 0,
            assembly=assembly if self.shows else "",
        )


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
