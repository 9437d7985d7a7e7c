"""What is neither written down nor repeated: passwords on the command line, values of environment variables.

A build's options enter records, manifests and remotes, and Hydra writes a sweep's overrides to a file: a secret among
them is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forge_pipeline.crypto.token_uri import IN_CLEAR, checked_places
from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.pipeline.stage_configs import SEALING, password_sources
from forge_runtime.redact import HIDDEN

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

NOT_SHOWN = "not shown: it might be a secret"
PASSWORD = f"{SEALING}.password"
NOWHERE = ("model.path", "data.path", "data.eval_path", "out", "store", "matrix", "sign.key", PASSWORD)
"""Options that say where things are: of no record and no key, and so free to come from the environment."""
_OF_PLACES = (PASSWORD, "sign.key", "store.sign", "store.key")
_TELLING = re.compile(r"encrypt|passw|secret|token|credential|sign\.key|store\.(sign|key)", re.IGNORECASE)


def is_secretive(override: str) -> bool:
    """Tell whether an override's value might be a secret, going by its key."""
    key, _, value = override.partition("=")
    telling = bool(value and _TELLING.search(key)) and override not in (f"{SEALING}=none", f"{SEALING}=password")
    return telling or IN_CLEAR in value


def quotable(override: str) -> str:
    """Return the override as a message may quote it."""
    return f"{override.partition('=')[0]}={HIDDEN}" if is_secretive(override) else override


def refuse_secrets(overrides: Sequence[Override | None]) -> None:
    """Raise ConfigError, which does not repeat it, for a password or a PIN that Hydra would write down."""
    for override in overrides:
        for option, places in _places(override) if override is not None else ():
            if "${" in str(places):  # resolved, and looked at, later: in no file of Hydra's
                continue
            if option == PASSWORD:
                password_sources({SEALING: {"password": places}})
            else:
                listed = places if isinstance(places, list) else [places]
                checked_places([place for place in listed if isinstance(place, str)], option)


def _places(override: Override) -> Iterator[tuple[str, Any]]:
    """Yield what the override, each of its values in a sweep, names as places of secrets, and for which option."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob

    key = override.key_or_group
    options = [option for option in _OF_PLACES if key in (option, option.partition(".")[0])]
    if not options or isinstance(override.value(), Glob):  # of names of files in conf/
        return
    singles = [override]
    if override.is_sweep_override():
        singles = OverridesParser.create().parse_overrides(
            [f"{key}={text}" for text in override.sweep_string_iterator()]
        )
    for value in (single.value() for single in singles):
        for option in options:
            if key == option:
                yield option, value
            elif isinstance(value, Mapping):
                yield option, value.get(option.partition(".")[2], ())


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return the configuration in plain containers.

    Raises ConfigError where an option that is written down comes from an environment variable, which might be a secret.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with _watched() as read:
        try:
            plain = OmegaConf.to_container(config, resolve=True)
        except OmegaConfBaseException as error:
            if not read:
                raise
            refused = f"one that does not resolve ({NOT_SHOWN})"
            raise ConfigError(
                "configuration", "values of environment variables", refused, "set the variables that it reads"
            ) from error
        found = next(_from_environment(config, read), None) if read else None
    if found is not None:
        raise ConfigError(
            where=found,
            expected="a value of its own: it is written into records, manifests and remotes",
            found=f"one of an environment variable ({NOT_SHOWN})",
            fix=f"give `{found}` itself; {', '.join(NOWHERE)} may come from the environment",
        )
    if not isinstance(plain, dict):
        raise UsageError("configuration", "a mapping", type(plain).__name__, "look at conf/config.yaml")
    return {str(key): value for key, value in plain.items()}


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Note in a list which environment variables are read through `oc.env`."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    read: list[str] = []

    def env(*arguments: Any) -> str | None:
        value = oc.env(*arguments)
        read.append(str(arguments[0]))
        return value

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield read
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _from_environment(node: Any, read: list[str], place: str = "") -> Iterator[str]:
    """Yield the options that are written down and come from the environment, by whatever way."""
    from omegaconf import OmegaConf

    for key in node if OmegaConf.is_dict(node) else range(len(node)):
        name = f"{place}.{key}" if place else str(key)
        if name in NOWHERE or OmegaConf.is_missing(node, key):
            continue
        read.clear()
        value = node[key]
        if read:
            yield name
        elif OmegaConf.is_config(value):
            yield from _from_environment(value, read, name)
