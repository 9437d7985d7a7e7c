"""A model file -> a checked model in canonical form, and the names its author gave things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.contract import Declared, Limits
from forge_pipeline.stages.contract import Rest, Result, Slice

if TYPE_CHECKING:
    from onnx import ModelProto

    from forge_pipeline.frontends import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/load/*.yaml. No defaults: a value that is not in the configuration is a stale result."""

    min_opset: int
    max_opset: int
    max_value_bytes: int
    inline_bytes: int
    defaulted_inputs: Literal["constant", "refuse"]
    import_memory: int
    import_seconds: int
    inputs: tuple[Declared, ...] = ()  # conf/model's
    dims: dict[str, int | list[int]] = field(default_factory=dict)  # conf/model's
    values: dict[str, Any] = field(default_factory=dict)  # conf/model's


def sliced(section: Slice, rest: Rest) -> Slice:
    """Add what conf/model says of the model's inputs."""
    return {**section, "inputs": rest.inputs, "dims": dict(rest.dims), "values": dict(rest.values)}


def run(config: Config, source: Source) -> Result:
    """Return the model that ``source`` names as an ONNXModule in canonical form.

    ONNX Runtime's own operators on integers are written out as operators between pairs, those of ai.onnx.ml as ONNX's
    but for ensembles of trees; text is the number of a word then, and the report says of which. Weights of more than
    ``inline_bytes`` in all stay in the files that they are in, and later stages leave them in files too; otherwise they
    are inside the model.

    Inputs that ``values`` names are constants in it, and extents that ``dims`` has one size for are numbers. Of those
    with several, it is checked that the model can have each. Equal models give equal bytes, whatever their storage and
    the names inside them. The report holds the original name of every renamed value, weight and node. Raises ModelError
    for a file that is damaged, unsafe, not a model, or outside what ONNX and ``config`` allow, and ConfigError for an
    extent or an input that the model does not have.
    """
    from forge_pipeline.frontends.table import import_model
    from forge_pipeline.ir import ONNXModule, checks, type_inference
    from forge_pipeline.ir.canonical import by_reference, canonical, whole
    from forge_pipeline.ir.external_data.limits import check_bulk
    from forge_pipeline.ir.external_data.resolve import within_reach
    from forge_pipeline.ir.input_values import with_values
    from forge_pipeline.ir.labels import labels_of
    from forge_pipeline.ir.ml.to_standard import written_out
    from forge_pipeline.ir.qdq.to_standard import in_standard, kept
    from forge_pipeline.ir.sequence_outputs import with_tensors_apart
    from forge_pipeline.ir.sizes.contradictions import told_apart
    from forge_pipeline.ir.traversal import every_node
    from forge_pipeline.passes.verification.sized import sized

    limits = Limits(memory=config.import_memory, seconds=config.import_seconds)
    sizes = {name: size for name, size in config.dims.items() if isinstance(size, int)}
    imported = import_model(source, inputs=config.inputs, limits=limits, sizes=sizes)
    left = {name: size for name, size in config.dims.items() if name not in imported.notes.get("sizes", {})}
    given = with_values(within_reach(imported.model, imported.external), config.values)
    written = written_out(with_tensors_apart(given))
    model = in_standard(written.model)
    checks.check_versions(model, min_opset=config.min_opset, max_opset=config.max_opset)
    model = checks.with_outputs_apart(checks.with_own_opset(model, max_opset=config.max_opset))
    faults = checks.interface_faults(model, max_value_bytes=config.max_value_bytes)
    if config.defaulted_inputs == "refuse":
        faults += checks.refusal_of(lambda: _refuse_defaults(model))
    try:
        form = canonical(model, external=imported.external)
    except ModelError as damage:
        checks.raise_together([*faults, damage])
        raise
    faults += checks.refusal_of(lambda: checks.check_operators(form, {**written.why, **kept(model)}))
    checks.raise_together(faults)
    form, renamed = told_apart(form)
    size = sum(weight.size for weight in form.weights)
    if left:
        form = sized(form, left, max_value_bytes=config.max_value_bytes)
    module = ONNXModule.mapped(by_reference(form)) if size > config.inline_bytes else ONNXModule(whole(form))
    inferred = type_inference.check_types(form, max_value_bytes=config.max_value_bytes)
    result = module.light
    check_bulk(result)
    type_inference.complete_outputs(result, inferred)
    report = {
        "kind": imported.kind,
        "importer": dict(imported.notes),
        "opset": {entry.domain or "ai.onnx": entry.version for entry in result.opset_import},
        "source": {"ir_version": model.ir_version, "producer": model.producer_name},
        "inputs": module.describe_inputs(),
        "outputs": module.describe_outputs(),
        "operators": module.operators,
        "nodes": sum(1 for _ in every_node(result)),
        "weights": len(form.weights),
        "weight_bytes": size,
        "defaults_made_constant": checks.defaulted_inputs(model),
        "labels": labels_of(result),
        "names": dict(form.names),
        "notes": [
            f"axis {axis} of input {name!r} is called {extent!r}: it cannot be as long as the file says"
            for (name, axis), extent in renamed.items()
        ],
    }
    return Result(output=module, report=report)


def _refuse_defaults(model: ModelProto) -> None:
    from forge_pipeline.ir import checks

    names = checks.defaulted_inputs(model)
    if names:
        raise ModelError(
            where="load.defaulted_inputs",
            expected="no input with a default value",
            found=", ".join(repr(name[:80]) for name in names),
            fix="set load.defaulted_inputs=constant to build with the defaults, or remove the initializers",
        )
