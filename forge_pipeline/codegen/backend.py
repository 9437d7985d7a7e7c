"""The steps that all code generators share: import before them; weights, memory, program and link after them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm.relax.backend import cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda

from forge_pipeline.codegen.amx.permission import uses_tiles
from forge_pipeline.codegen.entries import entries
from forge_pipeline.codegen.layout.batch_of_one import join
from forge_pipeline.codegen.layout.origins import Calls, layers, matched
from forge_pipeline.codegen.machine_code import compiling, linked
from forge_pipeline.codegen.memory.planner import plan_memory
from forge_pipeline.codegen.memory.weight_section import Halves, separate
from forge_pipeline.codegen.onnx_import.extents import with_extents
from forge_pipeline.codegen.onnx_import.float16 import storage, widened
from forge_pipeline.codegen.onnx_import.importer import (
    check_interface,
    demanded,
    imported,
    interface,
    outputs_of,
    prepare,
)
from forge_pipeline.codegen.onnx_import.recurrent.form import for_vectors
from forge_pipeline.codegen.program.listing import listing
from forge_pipeline.codegen.program.operations import Demands
from forge_pipeline.codegen.program.translation import SYMBOL
from forge_pipeline.codegen.program.writer import program_of
from forge_pipeline.codegen.regions.cut import Cut, cut
from forge_pipeline.codegen.regions.linkable import check_linkable
from forge_pipeline.codegen.state.in_step import in_step
from forge_pipeline.codegen.state.rewrite import with_states
from forge_pipeline.codegen.state.states import check_states, states_of, without_regions
from forge_pipeline.codegen.step import Entry, Lowering
from forge_pipeline.codegen.tir.deterministic_order import sort_shape_stores
from forge_pipeline.errors import CompileError
from forge_pipeline.ir.labels import labels_of
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.runtime.bundle import VERSION, Library
from forge_pipeline.target import Target
from forge_runtime.entries import MAIN


def import_onnx(work: Lowering) -> None:
    """Prepare the model and import it to Relax, for each combination of sizes that is asked for.

    On a CPU, half precision is computed in single. A model with control flow, or with sizes that data decides, becomes
    a program of regions. Raises CompileError where such a model is asked for at several sizes, or for a GPU.
    """
    source = work.source if work.options.state is None else in_step(work.source).model
    work.states = states_of(source, work.options.state, work.options.state_max)
    check_states(work.states, work.options, work.target)
    work.model = with_states(prepare(source), work.states)
    check_interface(work.model)
    if work.options.relocatable:
        check_linkable(work.model)
    variants = entries(source, work.options.dims, open_form=work.options.open_form)
    work.entries = []
    for variant in variants:
        model = work.model if variant.model is source else with_states(prepare(variant.model), work.states)
        found = cut(model)
        if isinstance(found, Cut) and work.states:
            raise without_regions()
        if isinstance(found, Cut) and work.target.kind == "cuda":
            raise CompileError(
                where=f"model {source.graph.name!r} for {work.target.tag}",
                expected="a model without control flow, whose sizes follow from those of its inputs",
                found="one that its runtime continues by what it computed, which none on a GPU does",
                fix="compile it for the CPU of that machine, or export it without what follows from data",
            )
        if not isinstance(found, Cut):
            work.entries.append(_entry(found, work, variant.function, variant.extents))
        elif len(variants) == 1:
            work.program = found.program
            pairs = zip(found.program.regions, found.regions, strict=True)
            work.entries = [_entry(prepare(region.model), work, entry.function, {}) for entry, region in pairs]
            work.demands = [
                {"extents": region.extents(), "constraints": list(entry.constraints)}
                for entry, region in zip(work.entries, found.regions, strict=True)
            ]
        else:
            raise CompileError(
                where="model.dims",
                expected="one size of each extent for a model with control flow, or whose data decides sizes",
                found=f"{len(variants)} combinations",
                fix="give one number for each extent, or leave them open",
            )


def _entry(model: onnx.ModelProto, work: Lowering, name: str, sizes: Mapping[str, int]) -> Entry:
    with for_vectors(work.target.vector_bits // 32, work.target.vector_registers):
        found = imported(model if work.target.kind == "cuda" else widened(model), work.progress, work.origins)
    return Entry(module=found.module, extents=found.extents, function=name, sizes=sizes, constraints=found.constraints)


def join_entries(work: Lowering) -> None:
    """Make one module of all entries, each of which works out its extents by itself, and a table of those that have
    sizes of their own."""
    work.table = [{"function": entry.function, "extents": dict(entry.sizes)} for entry in work.entries if entry.sizes]
    work.constraints = _constraints(work)
    modules = {entry.function: with_extents(entry.module, entry.extents or ()) for entry in work.entries}
    calls = {entry.function: entry.calls for entry in work.entries}
    if list(modules) == [MAIN]:
        work.module, work.calls = modules[MAIN], calls
    else:
        work.module, work.calls = join(modules, calls)


def _constraints(work: Lowering) -> Sequence[Mapping[str, Any]]:
    """Return what the sizes of every call must keep; a program's regions have demands of their own.

    The open model's hold for all entries. Where it is left out of the library, those of an entry say that its own
    sizes are the only ones.
    """
    if work.program is not None:
        return ()
    first = work.entries[0]
    return tuple(demanded(analyse(work.source))) if first.sizes and work.model is not None else first.constraints


def separate_weights(work: Lowering) -> None:
    """Move the weights out of the code where the kernels can read them in place: not on a GPU."""
    if work.target.kind == "cuda":
        return
    halves: Halves = "rounded" if work.options.float16 else storage(work.source)
    separated = separate(work.module, as_halves=halves, file=work.section, own_only=work.program is not None)
    if work.program is not None:
        regions = (replace(region, weights=separated.taken[region.function]) for region in work.program.regions)
        work.program = replace(work.program, regions=tuple(regions))
    work.module, work.weight_section, work.weights = separated.module, separated.section, separated.table


def _pipeline(target: Target) -> Any:
    return cuda if target.kind == "cuda" else cpu_generic.pipeline


def place_values(work: Lowering) -> None:
    """Allocate what kernels hand to each other."""
    with compiling(work):
        regions = () if work.program is None else (region.function for region in work.program.regions)
        work.module = planned(work.module, work.target, regions=frozenset(regions))


def planned(module: tvm.IRModule, target: Target, *, regions: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Return scheduled kernels and their callers with the memory that values between them take.

    What ``regions`` return has memory of its own, which whoever takes it may keep.
    """
    module = tvm.transform.Sequential(_pipeline(target).dataflow_lower_passes(target.tvm()))(module)
    return module if target.kind == "cuda" else plan_memory(module, own_results=regions)


def finalize(work: Lowering) -> None:
    """Bring the callers into Relax's last form: calls, allocations, and sizes in numbered slots."""
    with compiling(work) as machine:
        passes = _pipeline(work.target).finalize_passes(machine)
        work.module = sort_shape_stores(tvm.transform.Sequential(passes)(work.module))


def write_program(work: Lowering) -> None:
    """Write what a device runs: not on a GPU."""
    if work.target.kind != "cuda":
        demands = [Demands(row["extents"], row["constraints"]) for row in work.demands]
        work.device_program = program_of(work.module, _describe(work), work.program, demands)


def program_text(work: Lowering) -> str:
    """Return the program in lines, nothing where there is none."""
    return "" if work.device_program is None else listing(work.device_program)


def link_objects(work: Lowering) -> None:
    """Write the objects where nobody else is, link them, and describe the library."""
    with tempfile.TemporaryDirectory(prefix="forge-objects-") as folder:
        elf = linked(work, Path(folder))
    program = b"" if work.device_program is None else work.device_program.to_bytes()
    work.library = Library(elf=elf, weights=work.weight_section, metadata=_describe(work), program=program)
    work.library = replace(work.library, layers=layers(_calls(work), work.source.graph))


def _calls(work: Lowering) -> Iterable[Calls]:
    """Return what the functions of the program call, in its order: without what is done once, before any call."""
    if work.device_program is None:
        return work.calls.values()
    return [
        matched(work.calls[function], (symbol.removeprefix(SYMBOL) for symbol in called))
        for function, called in work.device_program.calls()
    ]


def library_text(work: Lowering) -> str:
    """Return the library's metadata and the sizes of its parts."""
    library = work.library
    if library is None:
        return ""
    sizes = {"code": len(library.elf), "weights": len(library.weights), "program": len(library.program)}
    return json.dumps({"bytes": sizes, **library.metadata}, indent=2) + "\n"


def _describe(work: Lowering) -> dict[str, Any]:
    model, target, options = work.source, work.target, work.options
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = interface(value for value in model.graph.input if value.name not in constants)
    outputs, kept = interface(outputs_of(model)), len(work.states)
    states = [
        {"input": before, "output": after, "max": state.most}
        for state, before, after in zip(
            work.states, inputs[len(inputs) - kept :], outputs[len(outputs) - kept :], strict=True
        )
    ]
    return {
        "format": VERSION,
        "target": {
            "tag": target.tag,
            "kind": target.kind,
            "triple": target.triple,
            "cpu": target.cpu,
            "features": list(target.features),
            "cpu_flags": list(target.cpu_flags),
            "cuda_arch": target.cuda_arch,
        },
        "inputs": inputs[: len(inputs) - kept],
        "outputs": outputs[: len(outputs) - kept],
        **({"states": states} if states else {}),
        "labels": labels_of(model),
        "weights": work.weights,
        "entries": work.table,
        "constraints": [dict(row) for row in work.constraints],
        "compile": {
            "generator": options.generator,
            "opt_level": options.opt_level,
            "float16": options.float16,
            "float_arithmetic": options.float_arithmetic,
            "channel_layout": options.channel_layout,
            "amx": uses_tiles(work.target, options),
            **({"workspace": work.workspace, "stack": work.stack} if options.relocatable else {}),
            "fallbacks": [
                {"operator": item.operator, "shape": list(item.shape), "share": item.share} for item in work.fallbacks
            ],
        },
    }
