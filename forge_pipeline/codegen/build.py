"""From an ONNX model to a library for one target."""

from __future__ import annotations

from pathlib import Path

import onnx

from forge_pipeline.codegen.amx.permission import needed
from forge_pipeline.codegen.entries import entries
from forge_pipeline.codegen.layout.half_precision import check_arithmetic
from forge_pipeline.codegen.lowering import pick_generator, run_steps
from forge_pipeline.codegen.onnx_import.importer import Progress, check_supported, import_model, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.regions.cut import Cut, cut
from forge_pipeline.codegen.regions.linkable import check_linkable
from forge_pipeline.codegen.shelf import Shelf
from forge_pipeline.codegen.state.in_step import in_step
from forge_pipeline.codegen.state.rewrite import with_states
from forge_pipeline.codegen.state.states import check_states, states_of, without_regions
from forge_pipeline.codegen.step import Lowering
from forge_pipeline.content import OpenFile
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target


def build(
    model: onnx.ModelProto,
    target: Target,
    options: Options,
    *,
    progress: Progress = lambda step: None,
    section: OpenFile | None = None,
    dump: Path | None = None,
    shelf: Shelf | None = None,
) -> Library:
    """Return ``model`` compiled for ``target``: same arguments, same bytes, wherever and whenever it runs.

    The metadata describes interface, weights, target, options and fallbacks; whose build it is, the stage adds.
    ``progress`` is told what is being worked on. The weights are written to ``section``, if that is given, and stay
    there. ``dump`` is a folder for what each step of the lowering leaves, in text. Kernels that are on the ``shelf``
    are not made again, and others are put there. Raises CompileError, ModelError and TargetError, and ForgeError where
    ``dump`` cannot be written.
    """
    check_arithmetic(target, options)
    work = Lowering(
        target=needed(target, options),
        options=options,
        model=model,
        section=section,
        progress=progress,
        shelf=shelf,
        dumps=dump is not None,
    )
    run_steps(work, dump)
    if work.library is None:
        raise AssertionError("the last step makes the library")
    return work.library


def check(model: onnx.ModelProto, target: Target, options: Options) -> None:
    """Raise CompileError with every node of ``model`` that cannot be compiled, before any kernel is made.

    Raises ConfigError for a generator that is not there for ``target``, or sizes of what is not open.
    """
    pick_generator(options, target)
    check_arithmetic(target, options)
    if options.state is not None:
        model = in_step(model).model
    states = states_of(model, options.state, options.state_max)
    check_states(states, options, target)
    for variant in entries(model, options.dims, open_form=options.open_form):
        prepared = with_states(prepare(variant.model), states)
        if states and isinstance(cut(prepared), Cut):
            raise without_regions()
        check_supported(prepared)
        if options.relocatable:
            check_linkable(prepared)


def relax_text(model: onnx.ModelProto) -> str:
    """Return the imported model in Relax's text form, weights as names. Raises as ``build`` does."""
    return str(import_model(prepare(model)).script(show_meta=False))
