"""Lists of target tags: for the command line, and as functions for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args

from forge_pipeline.ffi import import_ffi
from forge_pipeline.target.description import HOST, VARIANTS, Family, Target, described, is_several, section_of, tags


def _several() -> list[dict[str, Any]]:
    """Return what conf/target says of each target that stands for several CPUs."""
    sections: list[Any] = [section_of(tag) for tag in tags()]
    return [section for section in sections if is_several(section)]


def describe_targets(own: Iterable[Target] = (), *, as_json: bool) -> str:
    """Return what `forge-pipeline targets` prints: every target by family with TVM's description of it.

    ``own`` are the user's, in place of those of their tags.
    """
    targets = list({target.tag: target for target in (*described(), *own)}.values())
    if as_json:
        rows: list[dict[str, Any]] = [
            {"tag": row.tag, "family": row.family, "description": row.description, "tvm": row.spec()} for row in targets
        ]
        named = ("tag", "family", "description", VARIANTS)
        rows += [{**{name: row[name] for name in named}, "tvm": None} for row in _several()]
        return json.dumps([{"tag": HOST, "family": HOST, "description": "The machine that builds", "tvm": None}, *rows])
    width = max(len(target.tag) for target in targets)
    lines = [HOST, f"  {HOST:{width}}  The machine that builds, as the best of those below"]
    for family in get_args(Family):
        lines += ["", family]
        for target in targets:
            if target.family == family:
                lines += [
                    f"  {target.tag:{width}}  {target.description}",
                    f"  {'':{width}}  {json.dumps(target.spec())}",
                ]
        for row in _several():
            if row["family"] == family:
                lines += [
                    f"  {row['tag']:{width}}  {row['description']}",
                    f"  {'':{width}}  {', '.join(row[VARIANTS])}",
                ]
    return "\n".join(lines)


Tags = list[str] | list[tuple[str, str]]


def list_target_tags(verbose: bool = False) -> Tags:
    """Return all tags: those of conf/target, then those that only TVM's own registry knows.

    With ``verbose``, pairs of tag and TVM's description as JSON. Tags of TVM's registry are for
    ``tvm.target.Target``; a build needs a file in conf/target.
    """
    return _list(None, verbose)


def list_x86_tags(verbose: bool = False) -> Tags:
    """Return the tags of x86-64 CPUs; see ``list_target_tags``."""
    return _list("x86", verbose)


def list_arm_tags(verbose: bool = False) -> Tags:
    """Return the tags of ARM CPUs that run Linux or macOS; see ``list_target_tags``."""
    return _list("arm", verbose)


def list_cuda_tags(verbose: bool = False) -> Tags:
    """Return the tags of CUDA GPUs; see ``list_target_tags``."""
    return _list("cuda", verbose)


def list_android_tags(verbose: bool = False) -> Tags:
    """Return the tags of Android devices; see ``list_target_tags``."""
    return _list("android", verbose)


def _list(family: Family | None, verbose: bool) -> Tags:
    rows = [(target.tag, json.dumps(target.spec())) for target in described() if family in (None, target.family)]
    ours = {tag for tag, _ in rows}
    rows += [row for row in _registry(family) if row[0] not in ours]
    return rows if verbose else [tag for tag, _ in rows]


def _registry(family: Family | None) -> Iterable[tuple[str, str]]:
    """Yield tag and description of what TVM's registry has for ``family``."""
    import_ffi()
    from tvm.target.tag import list_tags

    for tag, target in sorted((list_tags() or {}).items()):
        if family is None or _family(str(target.kind), str(target.attrs.get("mtriple", ""))) == family:
            yield str(tag), str(target)


def _family(kind: str, triple: str) -> str | None:
    if kind != "llvm":
        return kind if kind == "cuda" else None
    if "android" in triple:
        return "android"
    prefixes = {"x86": "x86", "aarch64": "arm", "arm": "arm", "riscv": "riscv"}
    return next((name for prefix, name in prefixes.items() if (triple or "x86").startswith(prefix)), None)
