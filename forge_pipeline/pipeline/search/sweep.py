"""A search as Hydra's sweeper runs it: from its configuration and overrides to the last line that is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.digest import digest_json
from forge_pipeline.pipeline.build import source_inputs
from forge_pipeline.pipeline.search import results, space
from forge_pipeline.pipeline.search.finals import timed_again
from forge_pipeline.pipeline.search.options import Asked, Options, asked, options_of
from forge_pipeline.pipeline.search.records import opened
from forge_pipeline.pipeline.search.search import Launch, Search
from forge_pipeline.pipeline.stage_configs import slices
from forge_pipeline.pipeline.sweep.results import write_into
from forge_pipeline.pipeline.targets.spread import spread
from forge_pipeline.pipeline.withheld import NOWHERE, resolved
from forge_pipeline.target import HOST, Target

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

Compose = Callable[[list[str]], "DictConfig"]
"""Returns the configuration for a job's overrides."""


def search(
    section: Mapping[str, Any],
    overrides: Sequence[Override],
    config: DictConfig,
    compose: Compose,
    launch: Launch,
) -> None:
    """Search as conf/hydra/sweeper/budget.yaml and ``overrides`` say, and print what came of it. Raises ForgeError.

    ``config`` is the configuration without what varies. All that can be refused is refused before the first trial."""
    options = options_of(section)
    choices = config.hydra.runtime.choices
    wanted = asked(options, overrides, str(choices.get("target")))
    _refuse(wanted, compose)
    first = _first(wanted, config)
    with opened(Path(options.folder), _searched(options, wanted, compose)) as folder:

        def noted(jobs: Sequence[Sequence[str]], number: int) -> Sequence[Path | BaseException]:
            results.write(running, choices, running.trials)
            return launch(jobs, number)

        running = Search(options=options, asked=wanted, first=first, folder=folder, launch=noted)
        stop = running.run()
        finals = timed_again(running)
        front = results.write(running, choices, finals)
        write_into(folder.path, results.failures(running))
        print(results.conclusion(running, stop, finals, front), flush=True)


def _refuse(wanted: Asked, compose: Compose) -> None:
    """Compose every target, and every value of what varies, once. Raises ForgeError, or what Hydra raises."""
    tags, base = wanted.rules.targets(), wanted.shared()
    for tag in tags:
        slices(_plain(compose([*base, f"target={tag}", *_device(wanted, tag)])))
    for item in wanted.space:
        for text in item.samples():
            value = "[]" if item.key == space.KEEP_FLOAT and text.isdigit() else text
            slices(_plain(compose([*base, f"target={tags[0]}", f"{item.key}={value}"])))


def _device(wanted: Asked, tag: str) -> list[str]:
    return [f"device={wanted.devices[tag]}"] if tag in wanted.devices else []


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return a job's configuration without Hydra's own part."""
    from omegaconf import OmegaConf, flag_override

    hydra = config.hydra
    with flag_override(config, ["struct", "readonly"], False):
        config.pop("hydra", None)
    return resolved(spread(OmegaConf.create(config), hydra))


def _first(wanted: Asked, config: DictConfig) -> dict[str, str]:
    """Return which values the configuration has by itself, of those that are among the ones to try."""
    from omegaconf import OmegaConf

    found = {}
    for item in wanted.space:
        choices = config.hydra.runtime.choices
        now = choices[item.key] if item.key in choices else OmegaConf.select(config, item.key.lstrip("+"))
        text = _text(item, OmegaConf.to_container(now) if OmegaConf.is_config(now) else now)
        if text is not None:
            found[item.key] = text
    return found


def _text(item: space.Parameter, now: Any) -> str | None:
    """Return the text of the value that a parameter has ``now``, if it may have it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if isinstance(item, space.Between):
        is_number = isinstance(now, int | float) and not isinstance(now, bool)
        return item.text(now) if is_number and item.low <= now <= item.high else None
    if item.key == space.KEEP_FLOAT and item.ordered:
        return "0" if now == [] else None
    parser = OverridesParser.create()
    same = (text for text in item.texts if parser.parse_override(f"x={text}").value() == now)
    return next(same, None)


def _searched(options: Options, wanted: Asked, compose: Compose) -> dict[str, Any]:
    """Return what makes a search another one: model, data, configuration, targets and the machine that times them."""
    config = _plain(compose([*wanted.shared(), f"target={wanted.rules.targets()[0]}"]))
    sources = {name: None if given is None else given.digest() for name, given in source_inputs(config).items()}
    own = {
        key: value
        for key, value in config.items()
        if key not in (*NOWHERE, "target", "device", "jobs", "model", "data")
    }
    parts = {
        "model": [sources["source"], {key: value for key, value in config["model"].items() if key != "path"}],
        "data": [sources["data"], {key: value for key, value in config["data"].items() if not key.endswith("path")}],
        "configuration": own,
    }
    return {
        "format": 1,
        "machine": Target.from_tag(HOST).description,
        "targets": {tag: wanted.devices.get(tag) for tag in wanted.rules.targets()},
        **{name: digest_json(part) for name, part in parts.items()},
    }
