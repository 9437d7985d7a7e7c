"""How a delivery came to be: an in-toto Statement (v1) with SLSA provenance (v1), as `provenance.json`.

It says of every stage what its action key is made of (version, options, inputs, tools) and the digests of what it gave,
so that anybody with the same model, samples and tools can build the same and compare. Nothing in it tells when, where,
how fast or in which folder that was; equal builds differ in it by what encryption makes new each time. What a stage
measures or makes at random has no digest there, but that the delivered files are the subject.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from forge_pipeline.children import environment
from forge_pipeline.digest import canonical_json, digest_json
from forge_pipeline.pipeline.runner import Output, tool_version
from forge_pipeline.stages.artifacts import REPORT
from forge_pipeline.stages.contract import Slice

PROVENANCE = "provenance.json"
ENVELOPE = "provenance.intoto.jsonl"
"""The statement as it is signed."""
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:forge-pipeline:build:1"
_OWN = "forge-pipeline"
_BY_INSTALLER = re.compile(r"^\.\./|\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json)$|\.pyc$")
"""What of a record is none of the wheel's: scripts, compiled modules and notes."""


def statement(outputs: Mapping[str, Output], parts: Mapping[str, Slice]) -> dict[str, Any]:
    """Return the statement about ``outputs``, steps of one build, for the portable slices ``parts`` of all steps."""
    return {
        "_type": STATEMENT,
        "subject": [
            _file(name, output.action.outputs[name])
            for output in outputs.values()
            for name in sorted(output.stage.deliverables)
            if output.stage.gives == "sealed" and name in output.action.outputs
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"options": dict(parts)},
                "internalParameters": {"stages": {name: _made(output) for name, output in outputs.items()}},
                "resolvedDependencies": [*_sources(outputs), *_tools(outputs), *_commit()],
            },
            "runDetails": {
                "builder": {
                    "id": f"pkg:pypi/{_OWN}",
                    "version": {_OWN: tool_version(_OWN), "python": platform.python_version()},
                },
                "byproducts": [
                    _file(f"{name}/{file}", digest) | _annotations(output, file)
                    for name, output in outputs.items()
                    for file, digest in sorted(output.action.outputs.items())
                    if file not in output.kind.fresh or _repeats(output)
                ],
            },
        },
    }


def statement_bytes(outputs: Mapping[str, Output], parts: Mapping[str, Slice]) -> bytes:
    """Return `provenance.json`."""
    return canonical_json(statement(outputs, parts)) + b"\n"


def _repeats(output: Output) -> bool:
    """Whether even what may be new each time is not: a library that is delivered in clear."""
    return output.stage.gives == "sealed" and output.config()["method"] == "none"


def _annotations(output: Output, file: str) -> dict[str, Any]:
    """Return what a sealed library's public description does not tell."""
    if output.stage.gives != "library" or output.stage.code or file != REPORT:
        return {}
    return {"annotations": {"fallbacks": len(output.report()["fallbacks"])}}


def _made(output: Output) -> dict[str, Any]:
    made = {name: output.action.report[name] for name in ("version", "config", "inputs", "tools")}
    return {"action_key": output.action.key, **made}


def _file(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def _sources(outputs: Mapping[str, Output]) -> Iterator[dict[str, Any]]:
    """Yield the model and the samples, once each, under the name that the options have for them."""
    found: dict[str, str] = {}
    for output in outputs.values():
        for parameter, origin in output.stage.takes.items():
            digests = output.action.report["inputs"].get(parameter)
            if origin == "source":
                found["model.path"] = digests
            elif origin not in outputs and digests is not None:
                found |= {f"data.{name}": digest for name, digest in digests.items()}
    yield from (_file(name, digest) for name, digest in sorted(found.items()))


def _tools(outputs: Mapping[str, Output]) -> Iterator[dict[str, Any]]:
    tools = {_OWN, *(tool for output in outputs.values() for tool in output.action.report["tools"])}
    for tool in sorted(tools):
        described = {"name": tool, "uri": f"pkg:pypi/{tool}@{tool_version(tool)}"}
        digest = installed_digest(tool)
        yield described if digest is None else {**described, "digest": {"sha256": digest}}


@cache
def installed_digest(distribution: str) -> str | None:
    """Return a SHA-256 of the digests of all files of the wheel that a distribution was installed from.

    It is equal wherever the same wheel is installed, by whatever installer; None where no record of one was kept.
    """
    installed = importlib.metadata.distribution(distribution)
    if json.loads(installed.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        return None
    rows = csv.reader((installed.read_text("RECORD") or "").splitlines())
    digests = [f"{path} {digest}" for path, digest, _ in rows if digest and not _BY_INSTALLER.search(path)]
    return digest_json(sorted(digests)) if digests else None


def _commit() -> Iterator[dict[str, Any]]:
    """Yield the commit of the folder that the build was started in, if it is one of a repository."""
    if found := commit():
        yield {"name": "configuration", "digest": {"gitCommit": found}}


def commit() -> str | None:
    """Return the commit that the current folder is at; None where it is in no repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"], env=environment(), capture_output=True, check=False
        )
    except OSError:  # no git
        return None
    return done.stdout.decode("ascii", "replace").strip() or None if done.returncode == 0 else None
