"""What this machine has for builds, what each thing is good for, and how to get what is not there.

Whatever is called ready was tried: programs were started, the store's folder was looked at, the remote was asked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement

from forge_pipeline import children
from forge_pipeline.codegen.cuda import find_nvcc
from forge_pipeline.errors import ForgeError, MachineError
from forge_pipeline.pipeline.build import REMOTE, store_root
from forge_pipeline.pipeline.store_commands import remote_of
from forge_pipeline.report.figures import size
from forge_pipeline.runners.emulators import HOW_TO_GET_IT, LARGEST, emulator
from forge_pipeline.target import HOST, Target
from forge_pipeline.target.description import described, why_not_here
from forge_pipeline.target.features import CPUINFO_FLAGS
from forge_pipeline.target.host import this_machine
from forge_runtime.text import shown

State = Literal["ready", "absent", "wrong"]
DISTRIBUTION: Final = "forge-pipeline"
SECONDS: Final = 60
"""The longest that a program may take to tell its version."""
MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
EXTRAS: Final[Mapping[str, str]] = {
    "dvc": "dvc repro, remotes of data, experiments",
    "keyring": "passwords and keys from the system's keyring",
    "images": "evaluation samples from folders of images",
    "report": "the report page and its plots",
    "torch": "models of PyTorch",
    "keras": "models of Keras",
    "tensorflow": "SavedModels of TensorFlow",
    "tflite": "models of TensorFlow Lite",
    "sign": "signatures of models by OpenSSF's project",
    "pkcs11": "keys on smart cards and security modules",
    "s3": "a store on S3",
    "gs": "a store on Google Cloud Storage",
    "az": "a store on Azure",
    "sftp": "a store over SFTP",
    "webdav": "a store over WebDAV",
    "search": "searches by TPE, NSGA-II and at random",
    "joblib": "sweeps by joblib",
    "submitit": "sweeps by Slurm",
    "ray": "sweeps by Ray",
    "mlflow": "builds as runs of MLflow",
    "dvclive": "builds as experiments of DVC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A thing that builds use. ``state``: wrong is what makes builds fail, absent what only narrows them."""

    name: str
    state: State
    found: str
    good_for: str
    get: str = ""


def examine() -> Iterator[Finding]:
    """Look at each thing in turn."""
    yield from _checked("cpu", "code of the target `host`, tuned to this CPU", "describe this CPU in conf/target", _cpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding(name="cores", state="ready", found=str(cores), good_for="builds and sweeps in parallel")
    yield Finding(name="memory", state="ready", found=size(_memory()), good_for="large models")
    yield from _checked("store", "results that are not built again", "name a folder with FORGE_STORE", _store)
    if os.environ.get(REMOTE):
        yield from _checked("remote", "results of other machines", f"correct or unset {REMOTE}", _remote)
    else:
        yield Finding(
            name="remote",
            state="absent",
            found=f"{REMOTE} is not set",
            good_for="results of other machines",
            get=f"{REMOTE}=URL",
        )
    for arch in sorted(LARGEST):
        yield _program(f"qemu-{arch}", emulator(arch), f"measured accuracy of {arch} targets", HOW_TO_GET_IT)
    yield _program("nvcc", _nvcc(), "CUDA targets", "install the CUDA toolkit, or set CUDA_HOME", option="--version")
    yield _program("ssh", shutil.which("ssh"), "running on boards: device=NAME", "apt-get install openssh-client", "-V")
    for extra, good_for in EXTRAS.items():
        lacking = missing(extra)
        yield Finding(
            name=f"[{extra}]",
            state="absent" if lacking else "ready",
            found="lacks " + ", ".join(lacking) if lacking else "installed",
            good_for=good_for,
            get=f"pip install '{DISTRIBUTION}[{extra}]'" if lacking else "",
        )


def missing(extra: str) -> list[str]:
    """Return what an extra of this distribution requires and the environment does not have."""
    lacking = []
    for text in metadata.requires(DISTRIBUTION) or ():
        wanted = Requirement(text)
        if (
            wanted.marker is None
            or wanted.marker.evaluate({"extra": ""})
            or not wanted.marker.evaluate({"extra": extra})
        ):
            continue
        if wanted.name == DISTRIBUTION:
            lacking += [name for inner in sorted(wanted.extras) for name in missing(inner)]
        elif not _installed(wanted):
            lacking.append(f"{wanted.name}{wanted.specifier}")
    return lacking


def report(findings: Sequence[Finding], *, as_json: bool) -> str:
    """Return a line for each, or JSON: ``{"sound": bool, "findings": [...]}``."""
    if as_json:
        return json.dumps(
            {"sound": not wrong(findings), "findings": [asdict(finding) for finding in findings]}, indent=2
        )
    width = max(len(finding.name) for finding in findings)
    return "\n".join(
        shown(
            f"{finding.state:<7} {finding.name:<{width}}  {finding.found}; for {finding.good_for}{_way(finding)}", 1000
        )
        for finding in findings
    )


def wrong(findings: Sequence[Finding]) -> list[str]:
    """Return the names of what would make builds fail."""
    return [finding.name for finding in findings if finding.state == "wrong"]


def refuse(names: Sequence[str]) -> None:
    """Raise MachineError where something is wrong."""
    if names:
        raise MachineError("this machine", "what builds need", f"not in order: {', '.join(names)}", "do what they say")


def _way(finding: Finding) -> str:
    return f": {finding.get}" if finding.get else ""


def _checked(name: str, good_for: str, get: str, look: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding(name=name, state="ready", found=look(), good_for=good_for)
    except (ForgeError, OSError) as error:
        found = error.found if isinstance(error, ForgeError) else str(error)
        yield Finding(name=name, state="wrong", found=found, good_for=good_for, get=get)


def _cpu() -> str:
    host = Target.from_tag(HOST)
    machine = this_machine()
    has = sorted(name for name, flag in CPUINFO_FLAGS.get(machine.arch, {}).items() if flag in machine.flags)
    here = sum(why_not_here(target) is None for target in described())
    return f"{host.description}, runs {here} targets, {' '.join(has)}"


def _memory() -> int:
    """Return bytes of memory: the machine's, or its control group's where that has less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = MEMORY_LIMIT.read_text().strip() if MEMORY_LIMIT.exists() else ""
    return min(installed, int(limit)) if limit.isdigit() else installed


def _store() -> str:
    """Return where the store is and what is free there; OSError where nothing can be written."""
    root = store_root(None).absolute()
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    with tempfile.TemporaryFile(dir=there):
        return f"{root}, {size(shutil.disk_usage(there).free)} free"


def _remote() -> str:
    """Return that the remote answers: to open it asks it, and raises StoreError where it does not."""
    with closing(remote_of(None)) as remote:
        return f"{remote.shown} answers"


def _nvcc() -> str | None:
    try:
        return str(find_nvcc(Target.from_tag(HOST)))
    except ForgeError:
        return None


def _program(name: str, path: str | None, good_for: str, get: str, option: str = "--version") -> Finding:
    """Start a program that tells its version: one that does not start is none."""
    if path is None:
        return Finding(name=name, state="absent", found="not installed", good_for=good_for, get=get)
    ended = children.run_apart([path, option], b"", seconds=SECONDS)
    if ended.status != 0:
        return Finding(name=name, state="absent", found=f"{path} does not start", good_for=good_for, get=get)
    said = (ended.answer.decode("utf-8", "replace") or ended.said).strip().splitlines()
    version = next((line for line in said if re.search(r"\d\.\d", line)), "")
    return Finding(name=name, state="ready", found=f"{path}, {version}", good_for=good_for)


def _installed(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
