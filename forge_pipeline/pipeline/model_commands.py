"""What `forge-pipeline inspect` and `forge-pipeline passes` print and write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.config import bind
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.source import naming
from forge_pipeline.locate import conf_dir
from forge_pipeline.passes import files
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.report.figures import size
from forge_runtime.text import shown

if TYPE_CHECKING:
    import onnx

INTERFACE = {"input": "inputs", "output": "outputs"}
PATHS = ("path", "eval_path")


def inspect_model(model: Path, *, as_json: bool, svg: Path | None) -> str:
    """Describe a model file, as a table or as JSON, and draw it to ``svg`` if that is given. Raises ModelError."""
    from forge_pipeline.frontends.inspect import inspect
    from forge_pipeline.ir.display.svg import draw

    with naming(model):
        description = inspect(Source(model))
    if svg is not None:
        _write(svg, draw(description).encode())
    return json.dumps(description, indent=2, sort_keys=True) if as_json else _table(description)


def _table(found: Mapping[str, Any]) -> str:
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opset"].items())
    lines = [
        f"{found['kind']}, IR {found['ir_version']}, {opsets}, by {found['producer'] or 'an unknown producer'}",
        f"fingerprint  {found['fingerprint']}",
        f"structure    {found['structure']}",
        *(f"{label:<13}{_value(value)}" for label, key in INTERFACE.items() for value in found[key]),
        *(f"{'labels':<13}{_labels(name, kinds)}" for name, kinds in found["labels"].items()),
        f"weights      {found['parameters']:,} in {size(found['weight_bytes'])}",
        f"arithmetic   {found['macs']:,} multiply-adds",
        "operators    " + ", ".join(f"{name} {count}" for name, count in sorted(found["operators"].items())),
    ]
    return "\n".join(map(shown, lines))


def _value(value: Mapping[str, Any]) -> str:
    shape = "unknown shape" if value["shape"] is None else "[" + ", ".join(map(str, value["shape"])) + "]"
    return f"{value['name']}: {value['dtype']} {shape}"


def _labels(name: str, kinds: Mapping[str, Sequence[str | int]]) -> str:
    """Say what the values of an array, or its columns, stand for."""
    return f"{name}: " + "; ".join(f"{kind} {', '.join(map(str, labels))}" for kind, labels in kinds.items())


def list_passes(group: str | None, *, config: Path | None = None) -> str:
    """List the passes of ``group``, or all, with a line each; those that ``config`` imports among them."""
    rows = files.listing(group, files.read_recipe(config).imports if config is not None else ())
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{kind:<{widths[0]}}  {name:<{widths[1]}}  {summary}" for kind, name, summary in rows)


def apply_passes(
    model: Path, output: Path, names: Sequence[str], *, config: Path | None, checkpoints: bool, resume: bool
) -> str:
    """Apply passes to a file and return what each changed. Raises ForgeError, VerificationError among them."""
    outcome = files.apply_to_file(
        _recipe(config, names), model, output, write=_write, feeds=_feeds, checkpoints=checkpoints, resume=resume
    )
    rows = [f"{row.name:<28}{row.nodes[0]:>6} -> {row.nodes[1]} nodes" for row in outcome.history if row.changes]
    unverified = [f"not verified: {name}, {reason}" for name, reason in outcome.unverified.items()]
    return "\n".join(map(shown, [*rows, *unverified, f"wrote {output}"]))


def bisect_passes(model: Path, names: Sequence[str], *, config: Path | None) -> str:
    """Find the first application of a pass that changes what the model computes."""
    return shown(files.bisect_file(_recipe(config, names), model, feeds=_feeds))


def _recipe(config: Path | None, names: Sequence[str]) -> files.Recipe:
    return files.read_recipe(config or conf_dir() / "fold/full.yaml", names)


def _feeds(model: onnx.ModelProto, recipe: files.Recipe) -> tuple[list[dict[str, Any]], Any]:
    """Read the first calibration samples of the recipe's data, fitted to the model. Raises ConfigError, DataError."""
    from forge_pipeline.data import Dataset, Preparation
    from forge_pipeline.data.fitting import input_specs

    section = dict(recipe.data or {})
    data = Dataset.from_config(section)
    preparation = bind(Preparation, {k: v for k, v in section.items() if k not in PATHS}, where="data")
    samples = data.samples(preparation, input_specs(model), "calibration")
    count = recipe.verify.samples if recipe.verify is not None else 0
    labels = samples.labels()
    return list(islice(samples, count)), None if labels is None else labels[:count]


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content)
