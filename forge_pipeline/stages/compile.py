"""model (ONNX, float or QDQ) -> library (machine code, weights and metadata for one target)."""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.amx.permission import needed
from forge_pipeline.codegen.compile_process import Job, check_in_subprocess, compile_in_subprocess
from forge_pipeline.codegen.options import ChannelLayout, FloatArithmetic, Options, OptLevel
from forge_pipeline.codegen.shelf import Shelf
from forge_pipeline.codegen.verification.judge import Feed
from forge_pipeline.codegen.verification.verify import Checks
from forge_pipeline.config import bind
from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.ir.dims import listed, shown
from forge_pipeline.stages.contract import Hit, Rest, Result, Slice
from forge_pipeline.target import Target
from forge_pipeline.target.description import why_not_here

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule

NAMESPACE = uuid.UUID("6d0c1a53-9a3e-5b55-8a6e-2f6c0b8f7d10")
TOOLS = ("apache-tvm", "apache-tvm-ffi", "ziglang")
"""The distributions that decide the artifact's bytes."""
PARTS = {"code": "elf", "weights": "weights", "program": "program"}
"""The parts of a library whose sizes are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/compile/*.yaml, with the resolved target of conf/target."""

    target: Target
    generator: str
    opt_level: OptLevel
    set_float16: bool
    float_arithmetic: FloatArithmetic
    set_channel_layout: ChannelLayout | None
    amx: bool | None
    open_form: bool
    export_relax: bool
    uuid: str | None
    verify: Checks
    dims: dict[str, tuple[int, ...]] = field(default_factory=dict)  # conf/model's, those with several sizes
    state: dict[str, str] | str | None = None
    state_max: int = 2048
    relocatable: bool = False  # for a linker: package=objects
    data: Preparation | None = None  # how samples become inputs, where there are any to compare on

    def __post_init__(self) -> None:
        """Refuse a library where nothing can load it, and objects where nobody links them."""
        target = self.target
        if target.libc == "none" and not self.relocatable:
            raise TargetError(
                where=f"target {target.tag}",
                expected="package=objects: there is no operating system to load a library or a program",
                found="another package",
                fix="choose package=objects",
            )
        if self.relocatable and target.kind != "llvm":
            raise TargetError(
                where="package=objects",
                expected="a CPU",
                found=f"{target.tag} ({target.triple})",
                fix="choose package=library",
            )


def sliced(section: Slice, rest: Rest) -> Slice:
    """Add the target and listed sizes; where to dump what the compiler's steps make is a part of no key."""
    own = {name: value for name, value in section.items() if name != "dump"}
    is_checked = rest.has_data and section.get("verify", {}).get("enabled", False)
    data = rest.preparation if is_checked else None
    return {
        **own,
        "target": rest.target,
        "dims": listed(rest.dims),
        "data": data,
        "relocatable": rest.form == "objects",
    }


def unread(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Data are for the comparison alone."""
    return ("data",) if config.get("data") is None else ()


def localized(values: Slice) -> Slice:
    """Describe this machine's processor for `host`; one that is described in full stays as it is."""
    target = values["target"]
    whole = isinstance(target, Mapping) and target.keys() == {field.name for field in fields(Target)}
    described = bind(Target, target, where="target") if whole else Target.from_config(target)
    return {**values, "target": asdict(described)}


def accepts(hit: Hit, *, key: str, dump: Path | None, shelf: Shelf | None) -> bool:
    """Refuse a library that was never compared with its model, on a machine that can run it: another one built it.

    Where a dump is wanted, no library that is there already will do.
    """
    if dump is not None:
        return False
    config = hit.config()
    if not config["verify"]["enabled"] or "skipped" not in hit.report()["verification"]:
        return True
    return why_not_here(bind(Target, config["target"], where="target")) is not None


def run(
    config: Config,
    model: ONNXModule,
    data: Dataset | None = None,
    *,
    key: str,
    dump: Path | None = None,
    shelf: Shelf | None = None,
) -> Result:
    """Return ``model`` compiled for ``config.target`` and, where this machine can run it, compared with the model.

    They are compared on ``data``, and on made-up inputs for what these have no size of. ``key`` is the action key of
    this very run; it names the build in the metadata. ``dump`` is a folder in which the compiler's process leaves what
    each step makes, in text; nothing else depends on it, nor on what is on the ``shelf``. The report has the measured
    errors, or why nothing was measured, the generic-schedule fallbacks and, if asked for, the Relax text; ``notes`` are
    for the console. Metadata say of entries for which no inputs were found that these are ``unverified``. Raises
    CompileError, VerificationError, ModelError, TargetError, DataError and ConfigError.
    """
    options = _options(config)
    target = needed(config.target, options)
    unverified = why_not_here(target) if config.verify.enabled else "compile.verify.enabled is false"
    job = Job(
        model=model.light,
        target=target,
        options=options,
        checks=config.verify if unverified is None else None,
        relax_text=config.export_relax,
        dump=dump,
        feeds=_feeds(config, model, data) if unverified is None else (),
    )
    identity = {"uuid": _uuid(config.uuid, key), "stage_key": key, "fingerprint": model.fingerprint}
    compiled = compile_in_subprocess(job, shelf)
    metadata = {**compiled.library.metadata, **identity, "tools": _tools(), "quantization": _quantization(model)}
    checked = compiled.verification or {"skipped": unverified}
    if checked.get("unverified"):
        metadata["unverified"] = sorted(checked["unverified"])
    sizes = {part: len(getattr(compiled.library, field)) for part, field in PARTS.items()}
    report: dict[str, Any] = {
        "verification": checked,
        "fallbacks": metadata["compile"]["fallbacks"],
        "sizes": sizes,
    }
    notes = _notes(checked)
    if unverified is not None and config.verify.enabled:
        notes.append(f"not compared here: {unverified}; evaluate does, where it finds a place to run it")
    if notes:
        report["notes"] = notes
    if compiled.relax_text is not None:
        report["relax"] = compiled.relax_text
    return Result(output=replace(compiled.library, metadata=metadata), report=report)


def check(config: Config, model: ONNXModule) -> None:
    """Raise CompileError with all reasons why ``model`` cannot be compiled that its graph shows, in a second or two.

    It is for whoever would do something costly with the model first, such as quantize it: what it then consists of
    beside is known to the compiler.
    """
    job = Job(model=model.light, target=config.target, options=_options(config), checks=None, relax_text=False)
    check_in_subprocess(job)


def _options(config: Config) -> Options:
    return Options(
        generator=config.generator,
        opt_level=config.opt_level,
        float16=config.set_float16,
        float_arithmetic=config.float_arithmetic,
        channel_layout=config.set_channel_layout,
        amx=config.amx,
        dims=config.dims,
        open_form=config.open_form,
        relocatable=config.relocatable,
        state=config.state,
        state_max=config.state_max,
    )


def _feeds(config: Config, model: ONNXModule, data: Dataset | None) -> list[Feed]:
    """Return the first samples that calibrate, as inputs."""
    if data is None or config.data is None:
        return []
    from forge_pipeline.data.fitting import input_specs

    samples = data.samples(config.data, input_specs(model.light), "calibration")
    return list(islice(samples, config.verify.samples))


def _notes(checked: Mapping[str, Any]) -> list[str]:
    """Return what somebody who looks on should know: the sizes that were chosen, and what was not compared."""
    sizes: dict[str, list[str]] = {}
    for row in checked.get("inputs", ()):
        if row["sizes"]:
            sizes.setdefault(row["from"], []).append(shown(row["sizes"]))
    lines = [f"checked on {origin}: {'; '.join(several)}" for origin, several in sizes.items()]
    for entry, why in checked.get("unverified", {}).items():
        lines.append(f"not checked for {entry}: {why}; name sizes with compile.verify.dims, or give data.path=FILE")
    for row in checked.get("refused", {}).values():
        lines.append(f"the library refuses {shown(row['sizes'])}, which ONNX Runtime takes: {row['by_the_library']}")
    if checked.get("rounding"):
        outputs = ", ".join(f"{name} {noise:g}" for name, noise in checked["rounding"].items())
        lines.append(f"compared within what rounding alone changes: {outputs}")
    if checked.get("strays"):
        outputs = ", ".join(f"{name} {share:.2%}" for name, share in checked["strays"].items())
        lines.append(f"rows that only one of both finds, no more than rounding alone makes: {outputs}")
    return lines


def _uuid(chosen: str | None, key: str) -> str:
    """Return the user's UUID in its canonical form, or the one that follows from the stage key."""
    if chosen is None:
        return str(uuid.uuid5(NAMESPACE, key))
    try:
        return str(uuid.UUID(chosen))
    except ValueError as error:
        raise ConfigError(
            where="compile.uuid",
            expected="a UUID such as 123e4567-e89b-12d3-a456-426614174000, or null",
            found=repr(chosen),
            fix="give 32 hexadecimal digits, or null to have it derived from the build",
        ) from error


def _tools() -> dict[str, str]:
    return {tool: importlib.metadata.version(tool) for tool in TOOLS}


def _quantization(model: ONNXModule) -> dict[str, int]:
    """Return how many values are quantized and dequantized; both are 0 in a float model."""
    operators = model.operators
    return {name: operators.get(name, 0) for name in ("QuantizeLinear", "DequantizeLinear")}
