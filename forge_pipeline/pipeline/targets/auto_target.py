"""`target=auto`: the tag that is nearest to the board of `device=NAME`, or to this machine, put in its place.

It is found before anything is composed: keys, folders and manifests have the tag, and nothing is called `auto`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from forge_pipeline.errors import UsageError
from forge_runtime.text import shown

OPTION: Final = "target"
AUTO: Final = "auto"
DEVICE: Final = "device"
_AUTO: Final = re.compile(rf"([=,\[]\s*){AUTO}(?=\s*(?:[,\]]|$))")


def with_target(arguments: Sequence[str], compose: Callable[[Sequence[str]], dict[str, Any]]) -> list[str]:
    """Return the overrides with a tag wherever one of targets is `auto`, and say on stderr which that is.

    ``compose`` gives the configuration of overrides. Raises UsageError where `device` has several values, TargetError
    where no tag fits, DeviceError where the board cannot be asked.
    """
    if not any(_is_target(word) and _AUTO.search(word) for word in arguments):
        return list(arguments)
    tag = _found(arguments, compose)
    return [_AUTO.sub(lambda found: found[1] + tag, word) if _is_target(word) else word for word in arguments]


def _is_target(word: str) -> bool:
    return word.partition("=")[0] == OPTION


def _folders(arguments: Sequence[str]) -> list[str]:
    """Return the folders of the user's own groups as an override: Hydra's flag is none of ``compose``'s."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--config-dir", "-cd", dest="folder")
    folder = flags.parse_known_args(list(arguments))[0].folder
    return [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]


def _found(arguments: Sequence[str], compose: Callable[[Sequence[str]], dict[str, Any]]) -> str:
    from forge_pipeline.runners.device import Device
    from forge_pipeline.runners.inquiry import machine_of
    from forge_pipeline.target.host import this_machine
    from forge_pipeline.target.nearest import nearest

    own = [word for word in arguments if word.lstrip("+").partition("=")[0].partition(".")[0] == DEVICE]
    if any(word.startswith(f"{DEVICE}=") and "," in word for word in own):
        raise UsageError(f"{OPTION}={AUTO}", "one device", " ".join(own), "name the targets, or sweep over them alone")
    device = Device.of(compose([*own, *_folders(arguments)])[DEVICE])
    where = "this machine" if device is None else f"device {device.name}"
    found = nearest(this_machine() if device is None else machine_of(device), f"{OPTION}={AUTO}, {where}")
    print(shown(f"{OPTION}={AUTO}: {where} is {found.target.tag} ({found.target.description})"), file=sys.stderr)
    if found.advice is not None:
        print(shown(f"{OPTION}={AUTO}: {found.advice}"), file=sys.stderr)
    return found.target.tag
