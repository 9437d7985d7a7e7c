"""Targets as TVM's users write them: a tag, an option string, JSON or a dictionary, with a host beside it.

What such a description leaves open, the tiles that suit the machine, comes from the most capable described target that
the CPU fits; its triple, CPU and features are the user's.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from forge_pipeline import children
from forge_pipeline.errors import TargetError, did_you_mean
from forge_pipeline.ffi import import_ffi
from forge_pipeline.target.description import HOST, Target, described, tags
from forge_pipeline.target.features import CPUINFO_FLAGS

Description = str | Mapping[str, Any] | Target

LISTS: Final = frozenset({"keys", "libs", "mattr"})
ANNOTATIONS: Final = frozenset({"model", "device", "keys", "tag", "target_device_type"})
"""Words that say something about a target and change nothing here: there are no strategies to choose by them."""
READ: Final = frozenset({"kind", "mtriple", "mcpu", "mattr", "mabi", "num-cores", "arch", "host"})
REFUSED: Final = {
    "libs": "no external library: an artifact holds all of its kernels",
    "system-lib": "a library that is loaded: this build makes no self-registering objects",
    "runtime": "the C++ runtime: there is no other in this TVM",
    "mfloat-abi": "the ABI that the triple names: choose aarch64-linux-gnu, or the triple of your system",
}
HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "libs": ([], ()),
    "system-lib": (False, 0),
    "runtime": ("cpp", "c++"),
    "mfloat-abi": ("hard",),
}
GPU_LIMITS: Final = frozenset(
    {
        "max_num_threads",
        "thread_warp_size",
        "max_threads_per_block",
        "max_shared_memory_per_block",
        "shared_memory_per_block",
    }
    | {"registers_per_block", "l2_cache_size_bytes", "max_local_memory_per_block", "vector-width", "fast-math"}
    | {"from_device", "libdevice_path", "jit", "opt-level", "cl-opt", "num_cores"}
)
"""What TVM adds to the targets of its registry; the first word of each is read from the description instead."""


def resolved(target: Description, host: Description | None = None) -> Target:
    """Return the Target that a description means: one of ours, or the nearest of ours with the user's words.

    ``host`` is the CPU that drives a GPU; for a CPU target it must be that CPU. Raises TargetError.
    """
    given = target if isinstance(target, Target) else _read(target)
    if isinstance(given, Mapping):
        given = dict(given)
        inner = given.pop("host", None)
        host = host if host is not None else inner
        given = _of_spec(given, None if host is None else resolved(host))
    elif host is not None:
        given = _with_host(given, resolved(host))
    return given


def _read(target: str | Mapping[str, Any]) -> Target | Mapping[str, Any]:
    """Return a described target, or the dictionary that the text stands for."""
    if isinstance(target, Mapping):
        return target
    text = target.strip()
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetError("target", "a JSON object", f"{text[:80]!r} ({error})", "correct the JSON") from error
        return dict(found)
    if text in tags():
        return Target.from_tag(text)
    kind, *options = shlex.split(text) or [""]
    if kind in ("llvm", "cuda"):
        return {"kind": kind, **_options(options)}
    return _registered(text)


def _options(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise TargetError("target", "options such as -mcpu=skylake", repr(word), "write -name=value")
        if not equals:
            value = pending.pop(0) if pending and not pending[0].startswith("-") else "true"
        found[name] = value.split(",") if name in LISTS else {"true": True, "false": False}.get(value, value)
    return found


def _registered(tag: str) -> Mapping[str, Any]:
    """Return what TVM's registry says about a tag. Raises TargetError for one that nobody knows."""
    import_ffi()
    from tvm.target import Target as Machine
    from tvm.target.tag import list_tags

    known = {str(name) for name in list_tags() or {}}
    if tag not in known:
        near = did_you_mean(tag, [*tags(), *known])
        raise TargetError(
            where=f"target {tag!r}",
            expected="a tag, an option string such as `llvm -mcpu=skylake`, JSON or a dictionary",
            found="no such tag",
            fix=f"{near}list_target_tags() lists them",
        )
    machine = Machine(tag)
    spec = _plain(machine)
    if machine.host is not None:
        spec["host"] = _plain(machine.host)
    return spec


def _plain(machine: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"kind": str(machine.kind)}
    for name, value in machine.attrs.items():
        if str(name) in READ | ANNOTATIONS | set(REFUSED):
            listed = isinstance(value, str) is False and hasattr(value, "__iter__")
            spec[str(name)] = (
                [str(item) for item in value] if listed else value if isinstance(value, int) else str(value)
            )
    return spec


def _of_spec(spec: dict[str, Any], host: Target | None) -> Target:
    kind = spec.get("kind")
    if kind not in ("llvm", "cuda"):
        raise TargetError(
            where="target.kind",
            expected="llvm or cuda: what artifacts are built for",
            found=repr(kind),
            fix="give `kind`; for other devices compile with TVM itself",
        )
    for name, value in spec.items():
        if name in REFUSED and value not in HARMLESS[name]:
            raise TargetError(f"target.{name}", REFUSED[name], repr(value), f"leave `{name}` out")
        if name not in READ | ANNOTATIONS | GPU_LIMITS | set(REFUSED):
            near = did_you_mean(name, READ)
            raise TargetError(
                f"target.{name}", f"one of {', '.join(sorted(READ))}", repr(name), f"{near}correct the name"
            )
    if kind == "cuda":
        arch = spec.get("arch") or _present_gpu()
        cpu = host or _of_spec({"kind": "llvm"}, None)
        return replace(cpu, tag=f"cuda -arch={arch}", kind="cuda", family="cuda", cuda_arch=str(arch))
    made = _cpu(spec)
    return made if host is None else _with_host(made, host)


def _with_host(target: Target, host: Target) -> Target:
    """Return a GPU target driven by ``host``. Raises TargetError for a CPU target with another CPU as its host."""
    if host.kind != "llvm":
        raise TargetError("host", "a CPU", f"kind {host.kind}", "give the CPU that drives the device")
    if target.kind == "llvm":
        if (target.triple, target.cpu) != (host.triple, host.cpu):
            raise TargetError(
                where="host",
                expected=f"the target itself, {target.triple} {target.cpu}: a CPU is its own host",
                found=f"{host.triple} {host.cpu}",
                fix="leave the host out",
            )
        return target
    return replace(host, tag=f"{target.tag} host={host.tag}", kind="cuda", family="cuda", cuda_arch=target.cuda_arch)


def _cpu(spec: Mapping[str, Any]) -> Target:
    """Return the target for an llvm description: this machine where it says nothing."""
    here = Target.from_tag(HOST)
    words = {name for name in ("mtriple", "mcpu", "mattr", "mabi") if spec.get(name)}
    cores = int(spec["num-cores"]) if spec.get("num-cores") else None
    if not words:
        return replace(here, cores=cores or here.cores)
    triple = str(spec.get("mtriple") or here.triple)
    arch = triple.partition("-")[0]
    if arch not in CPUINFO_FLAGS:
        raise TargetError(
            where="target.mtriple",
            expected=f"a system that artifacts are built for: {', '.join(sorted({t.triple for t in described()}))}",
            found=repr(triple),
            fix="choose one of those",
        )
    cpu = str(spec.get("mcpu") or {"x86_64": "x86-64", "riscv64": "generic-rv64"}.get(arch, "generic"))
    features = tuple(map(str, spec.get("mattr") or ()))
    for base in described():
        same = base.kind == "llvm" and base.cpu == cpu and _system(base.triple) == _system(triple)
        if same and base.arch == arch and (not features or set(features) <= set(base.features)):
            return replace(base, abi=spec.get("mabi") or base.abi, cores=cores or base.cores)
    flags = _flags(triple, cpu, features)
    fitting = [
        item
        for item in described()
        if item.kind == "llvm" and item.cpu_id is None and item.arch == arch and _system(item.triple) == _system(triple)
    ]
    usable = [item for item in fitting if flags.issuperset(item.cpu_flags)]
    base = max(usable, key=_least) if usable else min(fitting, key=_least)
    return replace(
        base,
        tag=f"llvm -mtriple={triple} -mcpu={cpu}" + "".join(f" -mattr={','.join(features)}" if features else ""),
        description=f"{cpu}, with tiles for {base.tag}",
        triple=base.triple,
        cpu=cpu,
        features=features,
        abi=spec.get("mabi") or base.abi,
        cores=cores or base.cores,
        cpu_id=None,
        cpu_flags=tuple(sorted(flags)),
    )


def _least(target: Target) -> tuple[int, str]:
    """Order targets by how much they ask of a machine."""
    return len(target.cpu_flags), target.tag


def _system(triple: str) -> str:
    """Return what an artifact meets: android, apple or linux."""
    return next((name for name in ("android", "apple", "darwin", "macos") if name in triple), "linux").replace(
        "darwin", "apple"
    )


def _flags(triple: str, cpu: str, features: tuple[str, ...]) -> frozenset[str]:
    """Return the flags of /proc/cpuinfo that code for a CPU needs. Raises TargetError for one unknown to LLVM."""
    import_ffi()
    from tvm.target import Target as Machine
    from tvm.target import codegen

    if not codegen.llvm_is_valid_cpu(cpu, triple):
        known = [str(name) for name in codegen.llvm_get_cpu_archlist(Machine({"kind": "llvm", "mtriple": triple}))]
        near = did_you_mean(cpu, known)
        raise TargetError(
            "target.mcpu", f"a CPU that LLVM knows for {triple}", repr(cpu), f"{near}see `llc -mcpu=help`"
        )
    spec: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": cpu}
    if features:
        spec["mattr"] = list(features)
    flags = CPUINFO_FLAGS[triple.partition("-")[0]]
    uses = {str(name) for name in codegen.llvm_get_cpu_features(Machine(spec))}
    return frozenset(flags[name] for name in uses if name in flags)


def _present_gpu() -> str:
    """Return the architecture of this machine's first GPU, such as sm_86. Raises TargetError where there is none."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, env=children.environment(), capture_output=True, text=True, check=True, timeout=30
        )
        major, minor = done.stdout.splitlines()[0].strip().split(".")
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise TargetError(
            where="target 'cuda'",
            expected="a GPU on this machine, or its architecture",
            found="neither",
            fix="name it: target='cuda -arch=sm_86', or a tag such as cuda/sm_86",
        ) from error
    return f"sm_{major}{minor}"
