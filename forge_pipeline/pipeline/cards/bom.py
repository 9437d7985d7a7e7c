"""What a delivery is and is made of: a CycloneDX 1.7 bill of materials with a model card, as `bom.cdx.json`.

Written out here, since cyclonedx-python-lib has no model cards (its validator has, and tests use it). Like the
provenance, it is the same wherever the same is built: no time, and a serial number that follows from the content.
"""

from __future__ import annotations

import importlib.metadata
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from forge_pipeline.digest import canonical_json, digest_bytes
from forge_pipeline.errors import ArtifactError
from forge_pipeline.evaluation.results import VARIANTS
from forge_pipeline.pipeline.provenance import statement
from forge_pipeline.pipeline.runner import Output
from forge_pipeline.stages import giving
from forge_pipeline.stages.artifacts import METADATA
from forge_pipeline.stages.contract import Slice
from forge_runtime.text import shown

BOM = "bom.cdx.json"
MODEL = "model.path"
_SCORES = ("float", "quantized", "compiled")


def bom_bytes(outputs: Mapping[str, Output], parts: Mapping[str, Slice]) -> bytes:
    """Return `bom.cdx.json` for ``outputs``, the stages of one build, and the portable slices ``parts``."""
    origins = statement(outputs, parts)["predicate"]["buildDefinition"]["resolvedDependencies"]
    tools = [_tool(item) for item in origins if "uri" in item]
    digests = {item["name"]: item["digest"].get("sha256") for item in origins if "uri" not in item}
    sources = {name: digest for name, digest in digests.items() if digest is not None}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {"component": _model(outputs, parts, sources)},
        "components": tools,
    }
    serial = uuid.UUID(digest_bytes(canonical_json(content))[:32], version=5)
    return canonical_json({**content, "serialNumber": f"urn:uuid:{serial}"}) + b"\n"


def described(content: bytes, where: str) -> dict[str, str]:
    """Return the name and the digest of the model that a `bom.cdx.json` describes. Raises ArtifactError."""
    try:
        model = json.loads(content)["metadata"]["component"]
        return {str(model["name"]): str(model["hashes"][0]["content"])}
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        expected, fix = "a bill of materials of forge-pipeline", "deliver the build again"
        raise ArtifactError(where, expected, "another form", fix) from error


def _model(outputs: Mapping[str, Output], parts: Mapping[str, Slice], digests: Mapping[str, str]) -> dict[str, Any]:
    artifact, metrics = outputs[giving("sealed").name], outputs[giving("metrics").name]
    name = next(name for name in artifact.stage.deliverables if name in artifact.action.outputs)
    metadata = json.loads(artifact.store.read(artifact.action.outputs[METADATA]))
    found = metrics.value().values
    return {
        "type": "machine-learning-model",
        "bom-ref": name,
        "name": name,
        "description": f"for {metadata['target']['tag']}",
        "hashes": [{"alg": "SHA-256", "content": artifact.action.outputs[name]}],
        "modelCard": {
            "modelParameters": {
                "inputs": [{"format": _tensor(item)} for item in metadata["inputs"]],
                "outputs": [{"format": _tensor(item)} for item in metadata["outputs"]],
                "datasets": [_dataset(name, digest) for name, digest in digests.items() if name != MODEL],
            },
            "quantitativeAnalysis": {"performanceMetrics": [*_scores(found)]},
            "considerations": {"technicalLimitations": [*_limits(found)]},
            "properties": [
                {"name": MODEL, "value": digests[MODEL]},
                *(
                    {"name": f"{stage}.method", "value": str(part["method"])}
                    for stage, part in parts.items()
                    if "method" in part
                ),
            ],
        },
    }


def _tensor(value: Mapping[str, Any]) -> str:
    """Return such as `image: float32[batch, 1, 8, 8]`; names are the model's."""
    return shown(f"{value['name']}: {value['dtype']}[{', '.join(map(str, value['shape']))}]", 400)


def _dataset(name: str, digest: str) -> dict[str, Any]:
    return {"type": "dataset", "name": name, "contents": {"properties": [{"name": "sha256", "value": digest}]}}


def _scores(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    several = found.get(VARIANTS, {})
    for name in _SCORES:
        rows = {tag: own for tag, own in several.items() if name == _SCORES[-1]} or {"": found}
        for tag, own in rows.items():
            if own.get(name) is not None:
                part = shown(f"{name}, {tag}", 200) if tag else name
                yield {"type": shown(str(own["metric"]), 100), "value": str(own[name]), "slice": part}


def _limits(found: Mapping[str, Any]) -> Iterator[str]:
    for tag, own in found.get(VARIANTS, {"": found}).items():
        of = f"{tag}: " if tag else ""
        if "not_run" in own:
            yield shown(f"{of}not evaluated: {own['not_run']}", 400)
        else:
            yield shown(f"{of}evaluated on {own['samples']} samples; what others look like is not known", 400)


def _tool(origin: Mapping[str, Any]) -> dict[str, Any]:
    name, version = origin["name"], origin["uri"].partition("@")[2]
    licence = _licence(name)
    return {
        "type": "library",
        "bom-ref": origin["uri"],
        "name": name,
        "version": version,
        "purl": origin["uri"],
        "scope": "excluded",  # it built the model, and is not in it
        **({"licenses": [licence]} if licence else {}),
    }


def _licence(distribution: str) -> dict[str, Any] | None:
    """Return the licence as its own metadata tell it: an SPDX expression, or a name."""
    metadata: Any = importlib.metadata.metadata(distribution)
    if expression := metadata.get("License-Expression"):
        return {"expression": expression}
    classified = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or () if "License ::" in text]
    name = (classified or [metadata.get("License") or ""])[0].partition("\n")[0]
    return {"license": {"name": shown(name, 100)}} if name else None
