"""A step of the lowering, and what the steps work on. The list of them is ``lowering``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import tvm

from forge_pipeline.codegen.amx.permission import uses_tiles
from forge_pipeline.codegen.layout.origins import Calls, Origins
from forge_pipeline.codegen.onnx_import.extents import Sizes as Extents
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.program.encoding import Program as DeviceProgram
from forge_pipeline.codegen.regions.program import Program
from forge_pipeline.codegen.schedule_kernels import Scheduled
from forge_pipeline.codegen.shelf import Shelf
from forge_pipeline.codegen.state.states import State
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.content import FileRange, OpenFile
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target
from forge_runtime.entries import MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A kernel without a schedule of its own, as slow as plain loops are; in a quantized model, one that is in float.

    ``share`` is its part of the model's floating-point operations, 0..1.
    """

    operator: str
    shape: tuple[int | str, ...]
    share: float


@dataclass(slots=True, kw_only=True)
class Entry:
    """A function of the library and the kernels that it calls: `main`, one for sizes that are known, or a region.

    ``function`` is its name in the library; in ``module`` it is `main`. ``sizes`` are those of the inputs' extents that
    are known, by name. ``extents`` are what the variables stand for that `main` takes in its last parameter, which
    goes when the entries are joined; None where extents are expressions still. ``constraints`` are what the sizes of a
    call must keep. ``keeps_names``: its casts give extents names that tidying would take away. ``fused`` is the module
    before its kernels had loops, ``calls`` are those of `main`, and what of the model each of them computes.
    """

    module: tvm.IRModule
    function: str = MAIN
    sizes: Mapping[str, int] = field(default_factory=dict)
    extents: Extents | None = None
    constraints: Sequence[Mapping[str, Any]] = ()
    is_quantized: bool = False
    keeps_names: bool = False
    fused: tvm.IRModule | None = None
    scheduled: Scheduled | None = None
    calls: Calls = ()


@dataclass(slots=True, kw_only=True)
class Lowering:
    """A model on its way to a library. A step replaces what it changes; what it leaves alone stays.

    ``entries`` are joined to one at last; ``table`` has a row of the metadata for each that has sizes of its own,
    ``constraints`` what the sizes of every call must keep. ``program`` calls them where they are regions,
    ``device_program`` is what the library carries where they are not; ``demands``
    are what the sizes of each region's inputs must keep. ``pass_config`` is the PassContext configuration that the
    kernels need. ``weights`` has a row of the metadata for each array of ``weight_section``. ``progress`` is told what
    is being worked on. ``code`` are KernelObjects, some of which the ``shelf`` may have, and for a GPU TVM's module;
    ``dumps``: their text is asked for. ``workspace``: bytes that a kernel asks its runtime for at most; ``stack``:
    bytes that kernels take of it, where somebody has to set it aside. ``states`` are what a session keeps from call to
    call, in the order of the last inputs and outputs of ``model``. ``origins`` follows the model's nodes to those of
    each call of a kernel, which ``calls`` has by the function.
    """

    target: Target
    options: Options
    model: onnx.ModelProto | None = None
    section: OpenFile | None = None
    progress: Callable[[str], None] = lambda step: None
    entries: list[Entry] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    constraints: Sequence[Mapping[str, Any]] = ()
    program: Program | None = None
    demands: list[dict[str, Any]] = field(default_factory=list)
    fallbacks: tuple[Fallback, ...] = ()
    pass_config: Mapping[str, Any] = field(default_factory=dict)
    weight_section: bytes | FileRange = b""
    weights: list[dict[str, Any]] = field(default_factory=list)
    device_program: DeviceProgram | None = None
    code: Any = None
    workspace: int = 0
    stack: int = 0
    shelf: Shelf | None = None
    dumps: bool = False
    states: Sequence[State] = ()
    library: Library | None = None
    origins: Origins = field(default_factory=Origins)
    calls: Mapping[str, Calls] = field(default_factory=dict)

    @property
    def source(self) -> onnx.ModelProto:
        """The model. ValueError for a lowering that starts from a module."""
        if self.model is None:
            raise ValueError("a lowering that starts from a module has no model")
        return self.model

    @property
    def module(self) -> tvm.IRModule:
        """The module of `main`."""
        return self.entries[0].module

    @module.setter
    def module(self, module: tvm.IRModule) -> None:
        self.entries = [Entry(module=module)]

    @property
    def sized(self) -> str:
        """The name of the first function whose sizes are known, as far as any is; else `main`."""
        return str(self.table[0]["function"]) if self.table else MAIN

    @property
    def machine(self) -> Machine:
        """The CPU as schedules see it."""
        arithmetic = self.options.float_arithmetic
        machine = Machine.of(self.target, halves=arithmetic == "float16")
        return replace(machine, amx=uses_tiles(self.target, self.options), pairs=arithmetic == "bfloat16")


def modules_text(work: Lowering) -> str:
    """Return all modules as TVM prints them, weights as names."""
    return "\n\n".join(str(entry.module.script(show_meta=False)) for entry in work.entries) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``does`` is a sentence for docs/architecture.md; ``text`` is what there is after it, for who debugs."""

    name: str
    does: str
    run: Callable[[Lowering], None]
    text: Callable[[Lowering], str] = modules_text
