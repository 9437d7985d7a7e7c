"""The lowering, from an ONNX model to a library for one target: the list of its steps, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tvm

from forge_pipeline.codegen import backend, machine_code, stock, tiled
from forge_pipeline.codegen.onnx_import.importer import first_line
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.step import Entry, Lowering, Step
from forge_pipeline.codegen.tir.deterministic_order import extents_in_order
from forge_pipeline.errors import CompileError, ForgeError
from forge_pipeline.registry import Registry
from forge_pipeline.target import Target

IMPORT = Step(
    name="import",
    does="The ONNX model becomes functions of Relax operators, one for each combination of sizes that is asked for; "
    "what TVM would get wrong is mended or refused.",
    run=backend.import_onnx,
)
JOIN = Step(
    name="join",
    does="The functions for any size and for sizes that are known, or of all regions, become one module.",
    run=backend.join_entries,
)
TILED = (
    Step(
        name="entries",
        does="Where the batch is symbolic, each function is copied for a batch of one.",
        run=tiled.add_batch_of_one,
    ),
    Step(
        name="graph",
        does="Bindings are tidied, signed activations made unsigned, and computed extents given a name.",
        run=tiled.simplify_graph,
    ),
    Step(
        name="layout",
        does="Each operator is offered to the families; the first that knows it emits a kernel in the layout it likes.",
        run=tiled.choose_layouts,
    ),
    Step(
        name="legalize",
        does="Operators that no family took become kernels of TVM's own.",
        run=tiled.legalize,
    ),
    Step(
        name="fuse",
        does="Elementwise kernels are fused into the kernel that computes their operand.",
        run=tiled.fuse,
    ),
    Step(
        name="schedule",
        does="The schedule rule of its family gives every kernel its loops: tiles, vectors, threads.",
        run=tiled.schedule,
    ),
    Step(
        name="rewrite",
        does="Scheduled kernels are rewritten as no schedule can: padding peeled, tails moved back, results packed.",
        run=tiled.rewrite,
    ),
    JOIN,
)
"""The middle of the lowering for CPUs."""
STOCK = (
    Step(name="graph", does="TVM's passes over operators run.", run=stock.graph),
    Step(name="kernels", does="TVM makes kernels with its default schedules.", run=stock.kernels),
    JOIN,
)
"""The middle of TVM's default pipeline: correct everywhere, fast nowhere on a CPU."""
END = (
    Step(
        name="weights",
        does="Constants of 4 KiB and more become arguments, stored page-aligned beside the code.",
        run=backend.separate_weights,
    ),
    Step(
        name="memory",
        does="Values between kernels get places in one piece of memory.",
        run=backend.place_values,
    ),
    Step(
        name="finalize",
        does="Callers become calls, allocations, and sizes in numbered slots.",
        run=backend.finalize,
    ),
    Step(
        name="program",
        does="Calls, places and sizes become the table that a device runs.",
        run=backend.write_program,
        text=backend.program_text,
    ),
    Step(
        name="code",
        does="LLVM makes machine code of the kernels.",
        run=machine_code.generate_code,
        text=machine_code.code_text,
    ),
    Step(
        name="link",
        does="LLD links the objects to one shared object.",
        run=backend.link_objects,
        text=backend.library_text,
    ),
)

LOWERING = (IMPORT, *TILED, *END)
"""All steps of the CPU code generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A code generator: the kinds of target that it compiles for, and its steps between import and weights."""

    kinds: tuple[str, ...]
    steps: tuple[Step, ...]


GENERATORS = Registry(
    "code generator",
    {
        "tiled": Generator(kinds=("llvm",), steps=TILED),
        "stock": Generator(kinds=("llvm", "cuda"), steps=STOCK),
    },
)
"""Best first: `auto` takes the first that serves the target's kind."""

AUTO = "auto"


def pick_generator(options: Options, target: Target) -> Generator:
    """Return the generator that ``options`` name; ConfigError where there is none, or none for this target."""
    fitting = {name: found for name, found in GENERATORS.items() if target.kind in found.kinds}
    if options.generator == AUTO:
        return next(iter(fitting.values()))
    GENERATORS.pick(options.generator, where="compile.generator")
    return Registry(f"code generator for {target.kind}", fitting).pick(options.generator, where="compile.generator")


def lower(module: tvm.IRModule, target: Target, options: Options) -> Lowering:
    """Return an imported ``module`` as calls of scheduled kernels, by the middle of the list."""
    work = Lowering(target=target, options=options, entries=[Entry(module=module)])
    with extents_in_order():
        for step in _middle(work):
            step.run(work)
    return work


def _middle(work: Lowering) -> tuple[Step, ...]:
    """Return the generator's steps."""
    return pick_generator(work.options, work.target).steps


def run_steps(work: Lowering, dump: Path | None = None) -> None:
    """Apply all steps to ``work``, which has a model. With ``dump``, a file in that folder for each says what came out.

    Raises CompileError that names the step, and ForgeError where a file cannot be written.
    """
    _apply(1, IMPORT, work, dump)
    for number, step in enumerate((*_middle(work), *END), start=2):
        _apply(number, step, work, dump)


def _apply(number: int, step: Step, work: Lowering, dump: Path | None) -> None:
    work.progress(step.name)
    with _explained(f"{step.name} for {work.target.tag}"), extents_in_order():
        step.run(work)
    if dump is not None:
        _write(dump / f"{number:02}-{step.name}.txt", step.text(work))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ForgeError(
            where=f"compile.dump={str(path.parent)!r}",
            expected="a folder that can be written",
            found=f"{path.name}: {error.strerror or type(error).__name__}",
            fix="choose another folder, or leave it null",
        ) from error


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn what TVM raises into a CompileError that says in which step, with TVM's own last line."""
    try:
        yield
    except ForgeError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        raise CompileError(
            where=what,
            expected="TVM to compile the model",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="try `compile.opt_level=1` or `compile.generator=stock`; if that works, report the model",
        ) from error
