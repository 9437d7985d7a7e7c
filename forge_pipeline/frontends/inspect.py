"""What a model file holds: checked as loading checks it, described in plain JSON, drawn as SVG."""

from __future__ import annotations

from typing import Any

import onnx

from forge_pipeline.frontends.source import Source
from forge_pipeline.frontends.table import import_model
from forge_pipeline.ir import checks
from forge_pipeline.ir.canonical import canonical
from forge_pipeline.ir.display.describe import describe
from forge_pipeline.ir.external_data.resolve import within_reach
from forge_pipeline.ir.ml.to_standard import written_out
from forge_pipeline.ir.onnx_module import MAX_SHOWN_BYTES
from forge_pipeline.ir.qdq.to_standard import in_standard, kept
from forge_pipeline.ir.sequence_outputs import with_tensors_apart
from forge_pipeline.ir.type_inference import check_types, complete_outputs


def inspect(source: Source) -> dict[str, Any]:
    """Return the description of a model file, as ``ir.describe`` gives it, and what kind of file it is.

    Nothing in it is run or computed; ONNX Runtime's own operators are written out. Raises ModelError for what is
    damaged, unsafe or no model.
    """
    imported = import_model(source)
    written = written_out(with_tensors_apart(within_reach(imported.model, imported.external)))
    model = in_standard(written.model)
    checks.check_versions(model, min_opset=1, max_opset=onnx.defs.onnx_opset_version())
    model = checks.with_outputs_apart(checks.with_own_opset(model, max_opset=onnx.defs.onnx_opset_version()))
    checks.check_interface(model, max_value_bytes=MAX_SHOWN_BYTES)
    form = canonical(model, external=imported.external)
    checks.check_operators(form, {**written.why, **kept(model)})
    inferred = check_types(form, max_value_bytes=MAX_SHOWN_BYTES)
    complete_outputs(form.skeleton, inferred)  # as loading does: the fingerprint is of that
    return {
        "kind": imported.kind,
        "ir_version": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        **describe(form, inferred),
    }
