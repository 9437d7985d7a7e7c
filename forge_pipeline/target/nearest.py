"""The tag that is nearest to a machine's CPU, and what of that CPU no tag makes use of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forge_pipeline.target.description import Target, best_match, described
from forge_pipeline.target.host import Machine

GAINS: Final[Mapping[str, str]] = {
    "avx2": "vectors of 256 bits",
    "avx512f": "vectors of 512 bits",
    "avx_vnni": "products of bytes",
    "avx512_vnni": "products of bytes",
    "amx_int8": "products in tiles",
    "asimddp": "products of bytes",
    "i8mm": "products of matrices of bytes",
}
"""Flags of /proc/cpuinfo that the code generator has faster kernels for."""
SAME: Final[Mapping[str, str]] = {"avx_vnni": "avx512_vnni"}
"""A flag that gains nothing where the target has the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """``target``: the one of conf/target whose code runs there best. ``advice``: why another tag would be faster."""

    target: Target
    advice: str | None


def nearest(machine: Machine, where: str) -> Nearest:
    """Return the tag for a machine, called ``where`` in messages. Raises TargetError where none fits."""
    target = best_match(machine, described(), where=where)
    unused = [
        f"{flag} ({what})"
        for flag, what in GAINS.items()
        if flag in machine.flags and not {flag, SAME.get(flag)} & set(target.cpu_flags)
    ]
    if unused:
        known = f"it does not use {', '.join(unused)}"
    elif target.cpu_id is None and machine.ids:
        known = f"no tag knows the caches of {', '.join(sorted(machine.ids))}"
    else:
        return Nearest(target=target, advice=None)
    return Nearest(
        target=target, advice=f"{known}: a tag of its own, beside conf/target/{target.tag}.yaml, may be faster"
    )
