"""Hydra, held at arm's length: overrides in, a plain configuration or a ForgeError out."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from forge_pipeline.errors import ConfigError, ForgeError, UsageError, did_you_mean
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.sweep.jobs import EndedError, Job, Single, Task
from forge_pipeline.pipeline.targets.auto_target import with_target
from forge_pipeline.pipeline.targets.spread import GROUP, spread
from forge_pipeline.pipeline.withheld import NOT_SHOWN, is_secretive, quotable, refuse_secrets, resolved
from forge_pipeline.target import Target
from forge_pipeline.target.description import is_several
from forge_runtime.redact import HIDDEN

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

EXPERIMENT = "experiment"
"""The group whose choices may be several: each changes some of the rest."""

MULTIRUN = ("-m", "--multirun")
PATH_KEYS = ("model.path", "data.path", "data.eval_path", "out", "store.path")
"""Overrides whose value is a file name, taken as it is: `model.path=a (1),b=2.onnx` needs no quoting."""

BOUND_KEYS = ("hydra.sweeper.hold", "hydra.sweeper.enough")
"""Likewise, as Hydra's grammar has no `<`: `hydra.sweeper.hold=accuracy_drop<=0.5,library_kb<=800`."""

OPEN_KEYS = (
    "store.remote_options",
    "model.dims",
    "model.values",
    "compile.verify.dims",
    "fold.verify.dims",
    "evaluate.emulators",
)
"""Options whose keys are the user's own: `model.dims={batch: 1}` adds one, and so does `model.dims.batch=1`."""
OF_EACH = f"{GROUP}."
"""Of a target for several CPUs an option is none of its own, but one of each CPU's: it is looked at when all are."""

LISTED = {
    GROUP: "`forge-pipeline targets` lists them",
    "device": "choose one of those listed, or describe the board in conf/device/{}.yaml (docs/boards.md)",
}
"""What to do where a group has no such choice, if there is more to say than that those are listed."""
FILES = {
    "model.path": (".onnx", ".pt2", ".pt", ".pth", ".keras", ".h5", ".hdf5", ".tflite", ".pb"),
    "data.path": (".npz", ".npy"),
}
"""The options that files are for which are given without one, by how their names end."""

HYDRA_NOTES = Path(".forge/hydra")
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}
"""Launchers of others, and the extra that installs each."""

SEARCH = "hydra/sweeper=budget"
"""Chooses the sweeper whose jobs deliver into a folder for each trial, whatever varies."""

HERE = Path("conf")
"""The folder of a repository's own configuration."""

T = TypeVar("T")


def launch(arguments: Sequence[str], task: Task) -> None:
    """Compose the configuration for the command-line ``arguments`` and call ``task`` with it, once per job.

    Without a flag of Hydra's there is one job, and its application (plugins, a second composition) is not needed.
    Hydra's own flags work: ``-m`` for sweeps, ``--cfg job``, ``--config-dir``, ``--info``. Raises UsageError for
    an override that does not fit the configuration, ConfigError for a password that would be written down, and
    whatever ``task`` raises.
    """
    if SEARCH in arguments and not any(flag in MULTIRUN for flag in arguments):
        raise UsageError(SEARCH, "-m beside it", "a run of one job", "add -m")
    arguments = with_target(arguments, compose)
    if not any(argument.startswith("-") for argument in arguments):
        task(compose([admitted(quote_path(argument)) for argument in arguments]), None)
        return
    import hydra

    sweeping = any(flag in MULTIRUN for flag in arguments)
    # Hydra takes overrides on one side of its flag only; people write them on both.
    rest = [argument for argument in arguments if argument not in MULTIRUN]
    quoted = [admitted(argument if _parse(argument) else quote_path(argument)) for argument in rest]
    parsed = [_parse(argument) for argument in quoted]
    refuse_secrets(parsed)
    swept = tuple(item.key_or_group for item in parsed if item is not None and item.is_sweep_override())
    job = Job(task, () if SEARCH in arguments else swept) if sweeping else Single(task)

    main = hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(job)
    with ExitStack() as during:
        if sweeping:
            # Hydra writes a sweep's overrides into a folder, with every password that is in a URL: nothing of it stays.
            notes = during.enter_context(_notes(parsed))
            last = max((place for place, item in enumerate(parsed) if item), default=len(quoted))
            quoted.insert(last + 1, f"hydra.sweep.dir={in_quotes(notes)}")
            quoted.insert(0, "--multirun")
        during.enter_context(_hydra_process(["forge-pipeline run", *quoted]))
        _refuse_flags(quoted)
        _explained(lambda: _unwrap(main), quoted)


def _notes(parsed: Sequence[Override | None]) -> TemporaryDirectory[str]:
    """Return a folder for what Hydra and its launchers write: below this one where jobs may be on other machines."""
    if any(item is not None and item.key_or_group == "hydra/launcher" for item in parsed):
        HYDRA_NOTES.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix="sweep-", dir=HYDRA_NOTES.absolute())
    return TemporaryDirectory(prefix="forge-hydra-")


def _unwrap(call: Callable[[], object]) -> None:
    try:
        call()
    except EndedError as ended:
        if ended.__cause__ is not None:
            raise ended.__cause__ from None


def _refuse_flags(arguments: Sequence[str]) -> None:
    """Raise UsageError for a flag that Hydra does not know, or that lacks its value: Hydra would repeat all of it."""
    from hydra._internal.utils import get_args_parser

    try:
        _, unknown = get_args_parser().parse_known_args(arguments)
    except SystemExit as stop:  # its usage line is printed; or its version, which is all that was asked for
        if not stop.code:
            raise
        unknown = list(arguments)
    if unknown:
        found = " ".join(map(quotable, unknown))
        raise UsageError("run", "overrides and Hydra's flags", found, "see `forge-pipeline run --help`")


@contextmanager
def _hydra_process(argv: list[str]) -> Iterator[None]:
    """Give Hydra the command line it reads, and have it raise its errors, for us to explain."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


def compose(overrides: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Return the plain configuration for ``overrides``; UsageError where one does not fit.

    ``folder`` holds the root `config.yaml`; by default the one of this package.
    """
    return _explained(lambda: _compose(overrides, folder), overrides, folder)


def _compose(overrides: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    conf = str((folder or conf_dir()).resolve())
    around, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None  # of an application that builds with this
    try:
        with initialize_config_dir(conf, version_base="1.3", job_name="forge-pipeline"):
            composed = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
            return plain(composed)
    finally:
        GlobalHydra.instance().hydra = around


def plain(config: DictConfig) -> dict[str, Any]:
    """Return a configuration that Hydra composed, with its own part in it, without that, in plain containers."""
    from omegaconf import OmegaConf, flag_override

    hydra = config.hydra
    with flag_override(config, ["struct", "readonly"], False):
        own = spread(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]), hydra)
    return resolved(own)


def quote_path(argument: str) -> str:
    """Return the override with a file name, or a bound, in quotes, so that Hydra's grammar takes it as it is."""
    key, equals, value = argument.partition("=")
    if not equals or key not in (*PATH_KEYS, *BOUND_KEYS) or value in ("", "null") or value[0] in "'\"":
        return argument
    return f"{key}={in_quotes(value)}"


def admitted(argument: str) -> str:
    """Return the override with Hydra's leave to add keys, where the keys are the user's own, or of each CPU."""
    key = argument.partition("=")[0]
    is_open = key.startswith(OF_EACH) or any(key == own or key.startswith(f"{own}.") for own in OPEN_KEYS)
    return f"++{argument}" if is_open else argument


def in_quotes(value: str) -> str:
    """Return ``value`` as a string of Hydra's grammar that stands for it, whatever is in it."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    escaped += "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f"'{escaped}'"


def _parse(argument: str) -> Override | None:
    """Parse an override; None for a flag, and for what Hydra will refuse with its reason when it composes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if argument.startswith("-"):
        return None
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def _explained(call: Callable[[], T], overrides: Sequence[str], folder: Path | None = None) -> T:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    _refuse_merges(overrides)
    try:
        return call()
    except ForgeError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        own = [*own_folders(overrides), *([] if folder is None else [folder])]
        raise _explain(error, overrides, own) from error
    except (YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            where="configuration" if mark is None else f"{mark.name}, line {mark.line + 1}",
            expected="plain YAML in UTF-8, without tags of Python",
            found=getattr(error, "problem", None) or str(error),
            fix="correct the file",
        ) from error


def _refuse_merges(overrides: Sequence[str]) -> None:
    """Raise UsageError for several choices of a group where that has no meaning: Hydra would merge them into one.

    Experiments are merged, and targets are built for, all of them.
    """
    for override in overrides:
        group, _, value = override.lstrip("+").partition("=")
        if value.lstrip("'\"").startswith("[") and group not in (EXPERIMENT, GROUP) and (conf_dir() / group).is_dir():
            raise UsageError(
                where=quotable(override),
                expected="one choice of the group",
                found="a list, whose files Hydra merges into one",
                fix="build each by -m, without brackets",
            )


def _explain(error: Exception, overrides: Sequence[str], own: Sequence[Path]) -> UsageError:
    message = str(error)
    given = [item.replace("='", "=").removesuffix("'") for item in overrides if not item.startswith("-")]
    named = [item for item in given if item in message]
    where = quotable(named[0]) if named else "command line"
    if match := re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", message):
        key = match[1] or match[2]
        where = quotable(next((item for item in overrides if item.lstrip("+~").startswith(key)), key).lstrip("+"))
        siblings = _options(key)
        return UsageError(
            where=where,
            expected="an existing option: " + ", ".join(siblings),
            found=f"unknown option {key!r}",
            fix=f"{did_you_mean(key, siblings)}`forge-pipeline run --cfg job` prints all options",
        )
    if match := re.search(r"Could not find 'hydra/(\w+)/([^']+)'", message):
        return _no_plugin(match[1], match[2], re.findall(r"^\s+(\S+)$", message, re.MULTILINE))
    bare = str(getattr(error, "override", "="))  # what the grammar refused
    if "=" not in bare and not bare.startswith("~"):
        return _no_key(bare)
    if match := re.search(r"Could not (?:find|load) '(.+?)/([^']*)'", message):
        group, option = _split_group(match[1] + "/" + match[2])
        chosen = f"{group}={option}"
        where = next((item for item in overrides if item.lstrip("+").startswith(f"{group}=")), chosen)
        options = choices(group, own)
        fix = did_you_mean(option, options) + LISTED.get(group, "choose one of those listed").format(option or "NAME")
        if not own and option in choices(group, [HERE]):
            fix = f"`--config-dir {HERE}` takes what the folder {HERE} here has"
        return UsageError(
            where=quotable(chosen if is_secretive(chosen) else where),
            expected=f"one of conf/{group}: " + ", ".join(options),
            found=f"another choice ({NOT_SHOWN})"
            if is_secretive(chosen)
            else repr(option)
            if option
            else "an empty one",
            fix=fix,
        )
    if match := re.search(r"Ambiguous value for argument '(\w[^=]*)=([^']*)'", message):
        several = HIDDEN if is_secretive(f"{match[1]}={match[2]}") else match[2]
        return UsageError(
            where=where,
            expected="one value, or -m to build every one of several",
            found=f"{several!r} without -m",
            fix="add -m to build each of them (a sweep); a value that is a list is written key=[a,b]",
        )
    if any(map(is_secretive, named or overrides)):  # Hydra quotes overrides, whole or in parts
        message = f"another form ({NOT_SHOWN})"
    found = " ".join(message.split()) or type(error).__name__
    return UsageError(where, "overrides that compose with conf/config.yaml", found, "correct the override")


def _no_key(argument: str) -> UsageError:
    """Return what to say of an argument that is no override, for it has no ``=``."""
    suffix = Path(argument).suffix.lower()
    key = next((key for key, suffixes in FILES.items() if suffix in suffixes), None)
    if key is None and Path(argument).exists():
        key = "model.path"
    group = argument if argument in groups() else None
    fix = "name the option that it is for; `forge-pipeline run --cfg job` prints all options"
    if key is not None:
        fix = "give " + shlex.quote(f"{key}={argument}")
    elif group is not None:
        known = LISTED.get(group, f"one of {', '.join(choices(group))}")
        fix = f"give {group}=NAME: {known.format('NAME')}"
    elif argument in choices(GROUP):
        fix = f"give {GROUP}={argument}"
    return UsageError(quotable(argument), "an option with its value: KEY=VALUE", "no `=`", fix)


def _no_plugin(kind: str, name: str, options: list[str]) -> UsageError:
    """Return what to say of a launcher, or a sweeper, that is not installed or misspelt."""
    known = LAUNCHERS if kind == "launcher" else {}
    install = f"pip install 'forge-pipeline[{known[name]}]'" if name in known else "choose one of those listed"
    near = "" if name in known else did_you_mean(name, [*options, *known])
    return UsageError(
        where=f"hydra/{kind}={name}",
        expected="one that is installed: " + ", ".join(options),
        found=repr(name),
        fix=f"{near}{install}",
    )


def _split_group(name: str) -> tuple[str, str]:
    """Split `target/raspberry-pi/6` into its group (a folder directly in conf/) and the option."""
    group, _, option = name.partition("/")
    return group, option


def own_folders(arguments: Sequence[str]) -> list[Path]:
    """Return the folders with groups of the user's own that a command line names."""
    return [Path(value) for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd") and value]


def groups(own: Sequence[Path] = ()) -> list[str]:
    """Return the names of the configuration's groups, with those in the folders ``own``."""
    roots = [conf_dir(), *own]
    found = {path.name for root in roots for path in root.glob("*/") if path.name != "hydra"}
    return sorted({*found, *(f"hydra/{path.name}" for root in roots for path in root.glob("hydra/*/"))})


def choices(group: str, own: Sequence[Path] = ()) -> list[str]:
    """Return the choices of a group, with those in the folders ``own``."""
    folders = [root / group for root in (conf_dir(), *own)]
    return sorted({_choice(path, folder) for folder in folders for path in folder.rglob("*.yaml")})


def own_targets(folder: Path | None) -> list[Target]:
    """Return the targets of the user's own in ``folder``; with None, in `conf` here, if that holds a configuration.

    Raises ConfigError and UsageError.
    """
    folder = folder or (HERE if (HERE / "config.yaml").is_file() else None)
    if folder is None or folder.resolve() == conf_dir().resolve():
        return []
    root = folder if (folder / "config.yaml").is_file() else None
    more = [] if root else [f"hydra.searchpath=[{in_quotes(f'file://{folder.absolute()}')}]"]
    own = (path for path in sorted((folder / GROUP).rglob("*.yaml")) if not _is_ours(path, folder))
    tags = (_choice(path, folder / GROUP) for path in own)
    sections = (compose([f"{GROUP}={tag}", *more], root)[GROUP] for tag in tags)
    return [Target.from_config(section) for section in sections if not is_several(section)]


def _is_ours(path: Path, folder: Path) -> bool:
    """Return whether a file is, to the byte, the one of that name in this package."""
    ours = conf_dir() / path.relative_to(folder)
    return ours.is_file() and ours.read_bytes() == path.read_bytes()


def _choice(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _options(key: str) -> list[str]:
    """Return the options beside ``key`` in the default configuration."""
    parents, node = key.split(".")[:-1], _compose([])
    for part in parents:
        below = node.get(part)
        if not isinstance(below, dict):
            return sorted(node)
        node = below
    prefix = ".".join(parents)
    return sorted(f"{prefix}.{name}" if prefix else name for name in node)
