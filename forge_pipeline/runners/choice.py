"""Which place runs an artifact, by `evaluate.runner` and what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Literal, get_args

from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.runners.board import Board
from forge_pipeline.runners.contract import Place
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.emulators import emulator_for
from forge_pipeline.target import HOST, Target
from forge_pipeline.target.description import why_not_here

Runner = Literal["auto", "host", "emulator", "ssh", "none"]
RUNNERS: Final = get_args(Runner)
DECIDING: Final = ("tag", "kind", "triple", "libc", "cpu", "cpu_flags", "cuda_arch")
"""What of a target decides where its artifact can be run."""
OPTION: Final = "evaluate.runner"
"""What a message calls the choice."""


def without_host(
    runner: Runner, target: Mapping[str, Any], device: Device | None, own: Sequence[str] = ()
) -> Place | str:
    """Return the place that is no engine of this process, or why there is none; ``target`` is the library's own.

    ``own`` are the words of an emulator of the user's own.

    Raises ConfigError for `ssh` without a device, TargetError for `emulator` where there is none.
    """
    if runner in ("auto", "ssh") and device is not None:
        return Board(device=device, triple=str(target["triple"]))
    if runner == "ssh":
        raise ConfigError(OPTION, "a board with runner=ssh", "device=none", "choose device=NAME, of conf/device")
    if runner not in ("auto", "emulator"):
        return f"{OPTION} is {runner}"
    found = _emulator(target, own)
    if isinstance(found, str) and runner == "emulator":
        raise TargetError(f"{OPTION}=emulator", f"what emulates {target['tag']}", found, "choose runner=auto")
    return found


def prefers_host(runner: Runner, has_device: bool) -> bool:
    """Return whether this machine is to run what it can."""
    return runner == "host" or (runner == "auto" and not has_device)


def described(target: Mapping[str, Any]) -> Target:
    """Return a target of which ``target`` says no more than DECIDING; this machine's own for `host`."""
    here = Target.from_tag(HOST)
    if target["tag"] == HOST:
        return here
    return replace(here, **{**target, "cpu_flags": tuple(target["cpu_flags"])})


def effort_of(target: Target) -> int:
    """Return a rank of what running a target's artifact costs with `auto` and no board: 2 where an emulator runs it,
    which takes some ten times as long as all else of a build; 1 where this machine does; 0 where nothing does."""
    if why_not_here(target) is None:
        return 1
    return 0 if isinstance(_emulator(asdict(target)), str) else 2


def place_of(
    runner: Runner, target: Mapping[str, Any], device: Mapping[str, Any] | None, own: Sequence[str] = ()
) -> str | None:
    """Return the name of what will run a target's artifact, None for nothing: a part of the action key.

    ``target`` has what decides, of the configuration's section; ``device`` what the key says of a board.
    """
    wanted = described(target)
    if prefers_host(runner, device is not None) and why_not_here(wanted) is None:
        return HOST
    if device is not None and runner in ("auto", "ssh"):
        return str(device["name"])
    if runner not in ("auto", "emulator"):
        return None
    found = _emulator(asdict(wanted), own)
    return None if isinstance(found, str) else found.name


def _emulator(target: Mapping[str, Any], own: Sequence[str] = ()) -> Place | str:
    """Return what emulates a target, or why nothing does: of a GPU's machine QEMU would be the CPU alone."""
    if target.get("kind") == "cuda":
        return f"nothing emulates the GPU of {target['tag']}"
    return emulator_for(str(target["triple"]), str(target["cpu"]), list(target["cpu_flags"]), own)
