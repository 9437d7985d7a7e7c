"""A whole build for one target: the stages in their order, then the deliverables in one folder."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.config import bind
from forge_pipeline.crypto import keys, signing
from forge_pipeline.data import Dataset
from forge_pipeline.digest import digest_json
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.table import tools_for
from forge_pipeline.limits import lower
from forge_pipeline.pipeline.console import notes, stage_line, warn
from forge_pipeline.pipeline.deliver import deliver, prepare
from forge_pipeline.pipeline.listener import LISTENER
from forge_pipeline.pipeline.notary import notary
from forge_pipeline.pipeline.refusal import BETWEEN, LOAD, refusal
from forge_pipeline.pipeline.runner import External, Input, Output, Runner, maker_of
from forge_pipeline.pipeline.stage_configs import Model, dump_folder, key_sources, password_sources, plan, slices
from forge_pipeline.pipeline.sweep.jobs import below
from forge_pipeline.pipeline.tracking import tracker
from forge_pipeline.pipeline.trust.delivery import sign
from forge_pipeline.pipeline.vault import vault
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.contract import Slice, stage_and_variant
from forge_pipeline.store import Store
from forge_runtime.text import shown

if TYPE_CHECKING:
    from forge_pipeline.store.channel import Terms
    from forge_pipeline.store.remote import Remote

CALIBRATION = "calibration data"
REMOTE, REMOTE_OPTIONS = "FORGE_STORE_REMOTE", "FORGE_STORE_REMOTE_OPTIONS"
"""The environment variables that name the remote and its options: both may hold keys, and these are in no file."""


def build(config: Mapping[str, Any], folder: str | None = None) -> Path:
    """Build ``config``'s model for its target and return the folder that holds the deliverables.

    ``folder`` is a job's own place below ``out`` in a sweep. Nothing is delivered unless every stage succeeded.
    Raises ForgeError.
    """
    parts = slices(config)
    out = below(Path(_text(config, "out")), folder or "")
    dump = dump_folder(config)
    sources = _checked_sources(config, parts)

    signing_places = key_sources(config)
    key = signing.read_key(signing_places, option="sign.key") if signing_places else None
    track = tracker(config.get("track"))

    def waiting() -> None:
        warn(f"another run delivers to {out}; waiting for it to end")

    with prepare(out, on_wait=waiting), open_store(config.get("store")) as store:
        passwords = password_sources(config)
        runner = make_runner(
            store,
            passwords,
            label=str(config["target"]["tag"]),
            sealed=bool(passwords),
            model=model_name(config),
            dump=dump and dump / (folder or ""),
            device=Device.of(config.get("device")),
        )
        outputs = run_stages(runner, parts, sources)
        signing_it = None if key is None else partial(sign, key=key)
        deliver(outputs, parts, out, sealed=bool(passwords), sign=signing_it)
    print(f"delivered  {shown(str(out))}", flush=True)
    track(out, folder or str(config["target"]["tag"]))
    return out


def build_ahead(config: Mapping[str, Any], *, sealed: bool) -> None:
    """Build all that ``config``'s target needs into the store, and deliver nothing. ``sealed``: see `make_runner`."""
    parts = slices(config)
    sources = _checked_sources(config, parts)
    with open_store(config.get("store")) as store:
        label, device = str(config["target"]["tag"]), Device.of(config.get("device"))
        runner = make_runner(
            store, password_sources(config), label=label, sealed=sealed, model=model_name(config), device=device
        )
        run_stages(runner, parts, sources)


def _checked_sources(config: Mapping[str, Any], parts: Mapping[str, Slice]) -> dict[str, Input | None]:
    """Return the sources; DataError where there are no samples and something is to be calibrated with them."""
    sources = source_inputs(config)
    if sources[CALIBRATION] is None and any(CALIBRATION in read.values() for read in plan(parts).values()):
        raise DataError(
            "data.path", "calibration data for static quantization", "null",
            "give data.path=FILE.npz, or choose quantize=dynamic or quantize=none",
        )  # fmt: skip
    return sources


def run_stages(
    runner: Runner, parts: Mapping[str, Slice], sources: Mapping[str, Input | None], *, without: Container[str] = ()
) -> dict[str, Output]:
    """Run every step that this configuration needs, each on the outputs of those before it; return them by name.

    ``without`` these stages, which no other of them takes.
    Before one between load and compile has to do any work, a model that cannot be compiled is refused.
    """
    done: dict[str, Output] = {}
    check = refusal(parts, lambda: done[LOAD])
    for name, read in plan(parts).items():
        if stage_and_variant(name)[0] in without:
            continue
        inputs = {
            parameter: None if origin is None else done.get(origin) or sources[origin]
            for parameter, origin in read.items()
        }
        done[name] = runner.run(name, parts[name], inputs, first=check if name in BETWEEN else None)
    return done


def source_inputs(config: Mapping[str, Any]) -> dict[str, Input | None]:
    """Return the two things that come from outside: the model file, and the data (None where there is none)."""
    path = bind(Model, config.get("model"), where="model").path
    if not path:
        found = "null" if path is None else "an empty path"
        raise ConfigError("model.path", "a model file", found, "give model.path=FILE, or choose model=digits")
    return {"source": model_input(Path(path)), **data_inputs(config["data"])}


def model_name(config: Mapping[str, Any]) -> str:
    """Return the name of the model's file, for people."""
    return Path(str(config["model"]["path"])).name


def model_input(path: Path) -> Input:
    """Return a model's file as an input whose importer is part of the action key."""
    return External(Source(path), tools=tools_for(path))


def data_inputs(section: Mapping[str, Any]) -> dict[str, Input | None]:
    """Return the samples, as evaluation and as calibration depend on them; None where there are none."""
    if section.get("path") is None:
        return {"data": None, CALIBRATION: None}
    data = Dataset.from_config(section)
    return {"data": External(data), CALIBRATION: External(data.for_calibration())}


def make_runner(
    store: Store,
    passwords: tuple[str, ...],
    *,
    label: str,
    sealed: bool,
    model: str,
    dump: Path | None = None,
    device: Device | None = None,
) -> Runner:
    """Return a runner that prints a line a stage; asks for the password now, so that a missing one costs no work,
    and leaves no core dump of this process from then on.

    ``sealed`` says that encryption is asked for: what a stage gives then stays here if it shows the model. ``model`` is
    its file's name. With ``dump``, a folder for what the compiler's steps make, no library that is there already will
    do. ``device`` is the board that runs what is built, if any.
    """
    if passwords:
        lower(resource.RLIMIT_CORE, 0)
    password = keys.read_password(passwords) if passwords else None
    listener = LISTENER.get()

    def announce(output: Output) -> None:
        print("\n".join([stage_line(output, output.stage.variant or label), *notes(output)]), flush=True)
        listener.ends(output.stage.name)

    return Runner(
        store=store,
        ambient={
            "password": lambda stage: password,
            "entropy": lambda stage: os.urandom,
            "progress": listener.progress,
            "dump": lambda stage: dump,
            "shelf": lambda stage: store.kernels.made_by(digest_json(maker_of(STAGES[stage]))),
            "device": lambda stage: device,
            "quiet": lambda stage: listener.quiet,
        },
        sealed=sealed,
        starting=listener.begins,
        model=model,
        announce=announce,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """conf/config.yaml, section `store`."""

    path: str | None
    remote: str | None
    remote_options: dict[str, Any]
    remote_mode: Literal["read-write", "read-only"]
    remote_required: bool
    remote_answer: float
    remote_rate: float
    remote_patience: float
    remote_tries: int
    remote_wait: float
    enabled: bool
    sign: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    key: tuple[str, ...] = ()


@contextmanager
def open_store(options: Any) -> Iterator[Store]:
    """Open the store that the configuration names; a throw-away one when it is switched off."""
    config = bind(StoreOptions, options, where="store")
    for name in ("remote_answer", "remote_rate", "remote_patience"):
        if not 0 < getattr(config, name) < float("inf"):
            raise ConfigError(f"store.{name}", "a number above 0", str(getattr(config, name)), "see conf/config.yaml")
    if config.remote_tries < 1 or not config.remote_wait >= 0:
        found = f"store.remote_tries={config.remote_tries}, store.remote_wait={config.remote_wait}"
        raise ConfigError(
            "store", "one attempt or more, and no less than 0 s of waiting", found, "see conf/config.yaml"
        )
    if config.path == "":
        raise ConfigError("store.path", "a folder", "an empty path", "give store.path=FOLDER, or leave it out")
    sealing = vault(config.key)
    if not config.enabled:
        with TemporaryDirectory(prefix="forge-") as folder, Store(Path(folder), on_damage=warn, vault=sealing) as store:
            yield store
        return
    root = store_root(None if config.path is None else Path(config.path))
    vouched = notary(config.sign, config.trusted)
    with Store(root, _remote(config), on_damage=warn, on_wait=_warn_waiting, notary=vouched, vault=sealing) as store:
        yield store


def _remote(config: StoreOptions) -> Remote | None:
    """Return the remote that the configuration names, else FORGE_STORE_REMOTE's; None without one."""
    terms = terms_of(config)
    return None if terms is None else _open_remote(terms)


def terms_of(config: StoreOptions) -> Terms | None:
    """Return the remote that the configuration names, else FORGE_STORE_REMOTE's, and its terms; None without one."""
    url = config.remote or os.environ.get(REMOTE)
    if not url:
        if config.remote_required:
            raise ConfigError("store.remote", "a URL, since store.remote_required=true", "none", f"set it, or {REMOTE}")
        return None
    from forge_pipeline.store.channel import Terms

    return Terms(
        url=url,
        options=json.dumps({**_options_outside(), **config.remote_options}, sort_keys=True),
        writable=config.remote_mode == "read-write",
        required=config.remote_required,
        answer=config.remote_answer,
        rate=config.remote_rate,
        patience=config.remote_patience,
        tries=config.remote_tries,
        wait=config.remote_wait,
    )


def _options_outside() -> dict[str, Any]:
    """Return FORGE_STORE_REMOTE_OPTIONS; nothing of it is shown."""
    try:
        options = json.loads(os.environ.get(REMOTE_OPTIONS) or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(REMOTE_OPTIONS, "a JSON object", "something else (not shown)", "correct the variable")
    return options


@cache
def _open_remote(terms: Terms) -> Remote:
    """Open a remote once for all jobs of a sweep: one that failed in a job is not waited for in the next."""
    from forge_pipeline.store.remote import Remote

    return Remote(terms, warn)


def store_root(chosen: Path | None) -> Path:
    """Return the store's folder: the one chosen, else FORGE_STORE's, else `.forge/store` here."""
    return chosen or Path(os.environ.get("FORGE_STORE") or ".forge/store")


def _warn_waiting(key: str) -> None:
    warn(f"another process is building {key[:16]}; waiting for its result")


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(key, "a folder name", repr(value), f"give {key}=FOLDER")
    return value
