"""What `forge-pipeline verify` does: signatures and digests, then whatever else is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.crypto.keys import read_password
from forge_pipeline.errors import UsageError, VerificationError
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.trust.statements import MEASURING, Statement, difference, measured_elsewhere
from forge_pipeline.pipeline.verify.policy import Policy, check_policy, read_policy, trusted_keys
from forge_pipeline.pipeline.verify.rebuild import Materials, check_rebuild
from forge_pipeline.pipeline.verify.sealed import check_sealed
from forge_runtime.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What to check beside signatures and digests.

    ``rebuild``: that it builds again from these materials. ``against``: the folder of another builder, which must be
    the same. ``policy``: the file of rules to obey. ``password``: places of the one that opens what is sealed.
    """

    rebuild: Materials | None = None
    against: Path | None = None
    policy: Path | None = None
    password: tuple[str, ...] = ()


def verify(path: Path, trusted_files: Sequence[Path], checks: Checks) -> str:
    """Return what was checked, a line each, all of it sound. Raises ForgeError for the first that is not."""
    policy = Policy() if checks.policy is None else read_policy(checks.policy)
    trusted = trusted_keys(policy, checks.policy or path, trusted_files)
    found = delivery.verify(path, trusted)
    lines = [*found.lines]
    if checks == Checks():
        return "\n".join(lines)
    if not path.is_dir():
        raise UsageError("verify", "a folder that was delivered to", "a file", "name the folder")
    statement = found.statement or delivery.attested(path, trusted)[0]  # which says what is missing
    if checks.password:
        lines.append(check_sealed(path, statement, read_password(checks.password)))
    if checks.policy is not None:
        lines.append(check_policy(path, statement, policy))
    if checks.against is not None:
        lines.append(_against(path, statement, found.signer, checks.against, trusted))
    if checks.rebuild is not None:
        lines += check_rebuild(path, statement, checks.rebuild)
    return "\n".join(lines)


def _against(path: Path, one: Statement, signer: str, other: Path, trusted: Mapping[str, str]) -> str:
    """Compare the statements about two deliveries, each signed by a trusted key of its own."""
    two, second = delivery.attested(other, trusted)
    names = f"in {os.fspath(path)}", f"in {os.fspath(other)}"
    if signer == second:
        fix = "take the statement of another builder; give both public keys with --trusted"
        raise VerificationError("--against", "a statement that another key signed", f"one of {signer}, too", fix)
    without = {MEASURING} if measured_elsewhere(one, two) else set()
    found = difference(one, two, names=names, without=without)
    if found is not None:
        told, fix = "; ".join(found.lines), "release nothing that one of the builders cannot explain"
        raise VerificationError(f"stage {found.stage}", "two builders that agree", told, fix)
    return shown(f"agreed    {second} built the same")
