"""The statements of two builds side by side: the first stage in which they differ, and in what."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.provenance import BUILD_TYPE, PREDICATE, STATEMENT
from forge_pipeline.stages import giving, in_order
from forge_pipeline.stages.artifacts import KEY, REPORT
from forge_pipeline.stages.contract import stage_and_variant
from forge_runtime.text import shown

MEASURING, SEALING = giving("metrics").name, giving("sealed").name
_KINDS = STATEMENT, PREDICATE, BUILD_TYPE
_PLACE = ("machine", "ran_in", "device")  # options of a measurement that say where it was made
MAX_STATEMENT = 16 << 20
"""Bytes of a statement; what is larger is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a statement says of a stage: what its action key is made of, and the digests of what it gave, by file."""

    ingredients: dict[str, Any]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of `provenance.json`, checked for its form: digests of what was delivered and of what it came from.

    ``options`` are the portable slices of all steps, and ``stages`` are the steps; ``is_on_board``: it was measured on
    a board of the builder's.
    ``fallbacks``: kernels without a schedule of their own.
    """

    subject: dict[str, str]
    is_sealed: bool
    is_on_board: bool
    fallbacks: int
    options: dict[str, Any]
    stages: dict[str, Made]
    sources: dict[str, str]

    @property
    def is_consistent(self) -> bool:
        """Whether the last stage gave the subject; of what encryption makes new, whether it is encrypted at all."""
        if self.is_sealed or SEALING not in self.stages:
            return self.is_sealed == (KEY in self.subject)
        given = self.stages[SEALING].outputs.items()
        return self.subject == {name: digest for name, digest in given if name != REPORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first stage in which two builds differ, a line for each thing, and the files that do."""

    stage: str
    lines: tuple[str, ...]
    files: tuple[str, ...]


def parse(content: bytes, where: str) -> Statement:
    """Return the statement in a file of at most MAX_STATEMENT bytes. Raises ArtifactError."""
    try:
        text = json.loads(content)
        if _kinds(text) == _KINDS and canonical_json(text) + b"\n" == content:
            return _statement(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # of another form, like what is no statement at all
    fix = "deliver the build again, with this release"
    raise ArtifactError(where, "the provenance of a build of forge-pipeline", "another form", fix)


def _kinds(text: Any) -> tuple[Any, ...]:
    return text["_type"], text["predicateType"], text["predicate"]["buildDefinition"]["buildType"]


def _statement(text: Any) -> Statement:
    definition, details = text["predicate"]["buildDefinition"], text["predicate"]["runDetails"]
    made, options = definition["internalParameters"]["stages"], definition["externalParameters"]["options"]
    given: dict[str, dict[str, str]] = {name: {} for name in made}
    for item in details["byproducts"]:
        step, _, file = item["name"].rpartition("/")  # a step's name may have a tag in it
        given[step][file] = str(item["digest"]["sha256"])
    return Statement(
        subject={item["name"]: str(item["digest"]["sha256"]) for item in text["subject"]},
        is_sealed=options[SEALING]["method"] != "none",
        is_on_board=any(given.get("device") is not None for name, given in options.items() if _is(MEASURING, name)),
        fallbacks=sum(item.get("annotations", {}).get("fallbacks", 0) for item in details["byproducts"]),
        options=dict(options),
        stages={name: Made(ingredients=_ingredients(made[name]), outputs=given[name]) for name in in_order(made)},
        sources={
            item["name"]: str(item["digest"]["sha256"])
            for item in definition["resolvedDependencies"]
            if "uri" not in item and "sha256" in item["digest"]
        },
    )


def _is(stage: str, step: str) -> bool:
    return stage_and_variant(step)[0] == stage


def _ingredients(made: Any) -> dict[str, Any]:
    return {"version": made["version"], **{name: dict(made[name]) for name in ("config", "inputs", "tools")}}


def measured_elsewhere(one: Statement, other: Statement) -> bool:
    """Tell whether the two were measured in different places, so that measurements say nothing of the artifact."""
    places = [
        {name: [made.ingredients["config"].get(key) for key in _PLACE] for name, made in statement.stages.items()}
        for statement in (one, other)
    ]
    both = [name for name in places[0].keys() & places[1].keys() if _is(MEASURING, name)]
    return any(places[0][name] != places[1][name] for name in both)


def difference(
    one: Statement, other: Statement, *, names: tuple[str, str], without: Container[str] = ()
) -> Difference | None:
    """Return in what ``one`` and ``other``, called by ``names``, differ first; None where they agree.

    They agree where each stage had the same ingredients and gave the same bytes. Stages of ``without``, and what a
    build makes new each time, are not compared.
    """
    for name in in_order(one.stages.keys() | other.stages.keys()):
        if stage_and_variant(name)[0] in without:
            continue
        pair = one.stages.get(name), other.stages.get(name)
        if pair[0] is None or pair[1] is None:
            return Difference(stage=name, lines=(f"only {names[pair[0] is None]} has it",), files=())
        found = tuple(_differing(pair[0].ingredients, pair[1].ingredients, names))
        files = tuple(_files(pair[0].outputs, pair[1].outputs))
        if found or files:
            lines = (*found, *(f"{file}: other bytes" for file in files if file != REPORT or files == (REPORT,)))
            return Difference(stage=name, lines=lines, files=files)
    return None


def _files(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    yield from (file for file in sorted(one.keys() | other.keys()) if one.get(file) != other.get(file))


def _differing(one: Any, other: Any, names: tuple[str, str], place: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differing(one.get(key), other.get(key), names, f"{place}.{key}" if place else key)
    elif one != other:
        yield shown(f"{place}: {json.dumps(one)} {names[0]}, {json.dumps(other)} {names[1]}", 400)
