"""Passes over model files: what `forge-pipeline passes` does.

Importing this module imports no framework. Files are written by a function that the caller hands over, so that a
failure leaves nothing half done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.config import bind
from forge_pipeline.digest import canonical_json, digest_bytes, digest_file, digest_json
from forge_pipeline.errors import ConfigError, DataError, ModelError
from forge_pipeline.ir.values import fed
from forge_pipeline.passes.contract import VerifySettings
from forge_pipeline.passes.pipeline import SWITCHED_OFF, Entry, Outcome, apply, plan
from forge_pipeline.passes.table import metrics, table
from forge_pipeline.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.passes.contract import Arrays
    from forge_pipeline.passes.verification.verify import Verifier

Write = Callable[[Path, bytes], None]
Feeds = Callable[["onnx.ModelProto", "Recipe"], tuple[list[dict[str, Any]], "np.ndarray[Any, Any] | None"]]
"""Reads the recipe's ``data`` for a model: inputs, and labels where there are some. Packages above this one can."""

STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to do: the same sections as conf/fold/*.yaml, and where reference inputs are.

    ``inputs`` are npz files, one sample each, with an array for each input of the model; ``data`` is a section as in
    conf/data/*.yaml, whose first calibration samples are taken, as many as ``verify.samples``; without either, inputs
    are generated. ``labels`` is an npz file with an array ``y`` of one entry a sample, for metrics against labels.
    """

    passes: list[str | dict[str, Any]]
    imports: list[str]
    verify: VerifySettings | None
    inputs: list[str] | None = None
    labels: str | None = None
    data: dict[str, Any] | None = None


def read_recipe(config: Path, names: Sequence[str] = ()) -> Recipe:
    """Read a recipe; ``names`` of passes, if any, take the place of its list. Raises ConfigError."""
    import yaml

    try:
        values = yaml.safe_load(config.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(str(config), "a readable YAML file", str(error), "correct the path or the file") from error
    recipe = bind(Recipe, values, where=config.name)
    return replace(recipe, passes=list(names)) if names else recipe


def listing(group: str | None = None, imports: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Return (group, name, summary) of all passes, or of one group. Raises ConfigError for an unknown group."""
    rows = table(imports)
    groups = Registry("group of passes", {row.group: row.group for row in rows.values()})
    wanted = groups.pick(group, where="GROUP") if group is not None else None
    chosen = [(row.group, name, row.summary) for name, row in rows.items() if wanted in (None, row.group)]
    return sorted(chosen)


def apply_to_file(
    recipe: Recipe,
    source: Path,
    target: Path,
    *,
    write: Write,
    feeds: Feeds | None = None,
    checkpoints: bool = False,
    resume: bool = False,
) -> Outcome:
    """Run a recipe over ``source`` and write ``target`` and, beside it, ``target``'s name with ``.passes.json``.

    With ``checkpoints`` the model after each entry is kept in the folder ``target``'s name with ``.checkpoints``;
    ``resume`` goes on from the last of them, where source and recipe are still the same. When verification fails,
    the models before and after the wrong pass are written to the folder ``.failed``. Raises ForgeError.
    """
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.passes.verification.verify import PassVerificationError

    steps = plan(recipe.passes, table(recipe.imports), where="passes")
    model = _model(source)
    folder = _beside(target, ".checkpoints")
    key = digest_json({"source": digest_file(source), "passes": [_plain(entry) for entry in recipe.passes]})
    done, state, earlier = _last(folder, key) if resume else (0, model, [])
    verifier = _verifier(recipe, model, state, feeds)

    def keep(index: int, outcome: Outcome) -> None:
        content = ONNXModule(outcome.model).to_bytes()
        write(folder / _file(done + index), content)
        history = earlier + _rows(outcome)
        row = {"key": key, "done": done + index + 1, "model": digest_bytes(content), "history": history}
        write(folder / STATE, canonical_json(row))

    try:
        outcome = apply(state, steps[done:], verifier, after=keep if checkpoints or resume else None)
    except PassVerificationError as error:
        for name, kept in (("before.onnx", error.before), ("after.onnx", error.after)):
            write(_beside(target, ".failed") / name, ONNXModule(kept).to_bytes())
        raise
    write(target, ONNXModule(outcome.model).to_bytes())
    write(_beside(target, ".passes.json"), _history(outcome, model, earlier))
    return outcome


def bisect_file(recipe: Recipe, source: Path, *, feeds: Feeds | None = None) -> str:
    """Run a recipe without verification, then find the first application of a pass that changed the outputs.

    Returns a sentence: the pass, its place in the order of application, and the first node that differs. Raises
    ConfigError where the recipe has no ``verify`` section, and ModelError where the model cannot be run.
    """
    from forge_pipeline.passes.verification.bisect import first_difference

    steps = plan(recipe.passes, table(recipe.imports), where="passes")
    model = _model(source)
    verifier = _verifier(recipe, model, model, feeds)
    if verifier is None or verifier.unverified is not None:
        reason = "no `verify` section" if verifier is None else verifier.unverified
        raise ConfigError("passes bisect", "a model and settings to compare with", str(reason), "give them")
    states: list[tuple[str, onnx.ModelProto]] = [("", model)]
    apply(model, steps, None, observe=lambda name, state: states.append((name, state)))
    if verifier.agrees(states[-1][1]):
        return f"all {len(states) - 1} applications of passes that changed something keep the outputs"
    good, bad = 0, len(states) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if verifier.agrees(states[middle][1]) else (good, middle)
    cause = first_difference(states[good][1], states[bad][1], verifier.inputs, verifier.tolerance)
    return f"pass {states[bad][0]!r}, number {bad} of {len(states) - 1} that changed something" + (
        f"; {cause}" if cause else ""
    )


def _model(source: Path) -> onnx.ModelProto:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.ir.external_data import INLINE_BYTES

    try:
        module = ONNXModule.from_file(source)
    except OSError as error:
        raise ModelError(
            source.name, "a model file that can be read", str(error.strerror), "correct the path"
        ) from error
    if module.is_mapped:
        raise ModelError(
            where=source.name,
            expected=f"weights of at most {INLINE_BYTES} bytes, which `passes` has in memory",
            found=f"{module.outside_bytes} bytes",
            fix="name the passes in conf/fold and use `forge-pipeline run`, which leaves them in their file",
        )
    return module.mod


def _plain(entry: Entry) -> Any:
    return entry if isinstance(entry, str) else json.loads(json.dumps(entry))


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name.removesuffix(".onnx") + suffix)


def _file(index: int) -> str:
    return f"{index:03}.onnx"


def _last(folder: Path, key: str) -> tuple[int, onnx.ModelProto, list[dict[str, Any]]]:
    """Return how many entries are done, the model after them, and their history. Raises ConfigError."""
    from forge_pipeline.ir import ONNXModule

    try:
        state = json.loads((folder / STATE).read_text())
        done, digest, stored, history = int(state["done"]), state["model"], state["key"], list(state["history"])
        path = folder / _file(done - 1)
        intact = digest_file(path) == digest
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            where="passes apply --resume",
            expected=f"checkpoints of an earlier run in {folder.name}",
            found=str(error),
            fix="run with checkpoints first, or without resuming",
        ) from error
    if stored != key or not intact:
        raise ConfigError(
            where="passes apply --resume",
            expected="checkpoints of this model and these passes",
            found="a damaged checkpoint" if not intact else "those of another model or another list",
            fix=f"remove {folder.name} and run anew",
        )
    return done, ONNXModule.from_file(path).mod, history


def _verifier(recipe: Recipe, model: onnx.ModelProto, state: onnx.ModelProto, feeds: Feeds | None) -> Verifier | None:
    """Return a verifier for ``state``, with the original's outputs as reference while they have one interface."""
    if recipe.verify is None:
        return None
    from forge_pipeline.passes.verification.verify import Verifier

    inputs, labels = _reference(recipe, model, feeds)
    same = list(model.graph.output) == list(state.graph.output) and fed(model.graph) == fed(state.graph)
    verifier = Verifier.of(
        model if same else state,
        recipe.verify,
        inputs=inputs,
        labels=labels,
        metrics=metrics(recipe.imports),
    )
    if same and state is not model:
        verifier.adopt(state)
    return verifier


def _reference(
    recipe: Recipe, model: onnx.ModelProto, feeds: Feeds | None
) -> tuple[list[Arrays] | None, list[np.ndarray[Any, Any]] | None]:
    """Return inputs and labels as the recipe has them; None where it has none."""
    labels = _labels(recipe.labels)
    if recipe.data is None:
        return (_inputs(recipe.inputs) if recipe.inputs else None), labels
    if recipe.inputs or feeds is None:
        raise ConfigError(
            where="data",
            expected="inputs from files or from data" if recipe.inputs else "a reader of data",
            found="both `inputs` and `data`" if recipe.inputs else "none, as this was called from Python",
            fix="take one of them out" if recipe.inputs else "hand `feeds` over, or give `inputs`",
        )
    given, known = feeds(model, recipe)
    if labels is None and known is not None:
        labels = _each(known)
    return list(given), labels


def _each(labels: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    import numpy as np

    return [np.atleast_1d(label) for label in labels]


def _inputs(paths: Sequence[str]) -> list[Arrays]:
    return [dict(_npz(path)) for path in paths]


def _labels(path: str | None) -> list[np.ndarray[Any, Any]] | None:
    if path is None:
        return None
    arrays = _npz(path)
    if "y" not in arrays:
        raise DataError(path, "an array `y`", ", ".join(arrays), "save the labels under that name")
    return _each(arrays["y"])


def _npz(path: str) -> Mapping[str, np.ndarray[Any, Any]]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise DataError(path, "an npz file of plain arrays", str(error), "save it with numpy.savez") from error


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [row.as_json() | {"milliseconds": round(1000 * row.seconds)} for row in outcome.history]


def _history(outcome: Outcome, model: onnx.ModelProto, earlier: Sequence[dict[str, Any]]) -> bytes:
    """Return what is written beside the model; ``earlier`` are the rows of the run that this one goes on from."""
    before = {row["pass"]: reason for row in earlier if (reason := _not_verified(row)) is not None}
    content = {
        "nodes": [len(model.graph.node), len(outcome.model.graph.node)],
        "history": [*earlier, *_rows(outcome)],
        "overall": outcome.overall,
        "unverified": before | outcome.unverified,
        "findings": outcome.findings,
    }
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _not_verified(row: Mapping[str, Any]) -> str | None:
    """Return why what a pass changed was not verified; None where it was."""
    found = row.get("verification")
    if found is None:
        return SWITCHED_OFF if row["changes"] else None
    return None if found["verified"] else str(found["reason"])
