"""Hardware targets: what conf/target says about a machine, bound strictly, and what the compiler makes of it.

A tag (``raspberry-pi/5``) is the path of a YAML file under conf/target, so a new target is one new file.
Nothing here imports TVM until a target is handed to the compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.config import bind
from forge_pipeline.errors import TargetError, did_you_mean
from forge_pipeline.locate import conf_dir
from forge_pipeline.target.host import ARCHITECTURES, Machine, this_machine

if TYPE_CHECKING:
    import tvm

HOST = "host"
VARIANTS = "variants"
"""What a target lists that stands for several CPUs."""

Family = Literal["x86", "arm", "android", "riscv", "cuda"]
DotProduct = Literal["none", "pmaddwd", "vnni", "avx_vnni", "smlad", "smull", "sdot", "i8mm"]

VNNI: tuple[DotProduct, ...] = ("vnni", "avx_vnni")
TUNING = ("+fast-dpwssd",)
"""LLVM's word for a CPU with VNNI on which `vpdpwssd` stays one instruction: else it becomes two, for their latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One file of conf/target.

    ``triple``, ``cpu``, ``features`` (with + or -) and ``abi`` are LLVM's words for the CPU, which for a CUDA
    target is the one that drives the GPU. ``libc`` is the C library that the artifact meets on the device; `none`
    where there is no operating system.

    The machine description drives the code generator's choice of tiles: ``vector_bits`` of the widest
    registers worth using and their number, ``fma_ports`` fused multiply-adds of that width started per
    cycle, ``bfloat16_ports`` dot products of bfloat16 (0 where there are none), caches in KiB per core (a
    shared cache divided by its cores), and ``dot_product``, the int8 instructions there are.

    ``cpu_id`` (x86 vendor, or ARM implementer/part) and ``cpu_flags`` are what /proc/cpuinfo shows on such a
    machine: `host` is recognised by them, and an artifact runs only where all the flags are.
    """

    tag: str
    family: Family
    description: str
    kind: Literal["llvm", "cuda"]
    triple: str
    cpu: str
    features: tuple[str, ...]
    abi: str | None
    libc: Literal["glibc", "bionic", "apple", "none"]
    cores: int
    vector_bits: int
    vector_registers: int
    fma_ports: int
    bfloat16_ports: int
    l1d_kib: int
    l2_kib: int
    l3_kib_per_core: int
    dot_product: DotProduct
    cuda_arch: str | None
    cpu_id: str | None
    cpu_flags: tuple[str, ...]

    def __post_init__(self) -> None:
        if (self.kind == "cuda") != (self.cuda_arch is not None):
            raise TargetError(
                where=f"target {self.tag}",
                expected="cuda_arch for kind cuda, and for no other kind",
                found=f"kind {self.kind} with cuda_arch {self.cuda_arch}",
                fix="set `cuda_arch: sm_86` (or the like), or null",
            )
        for name in ("cores", "vector_bits", "vector_registers", "fma_ports", "l1d_kib"):
            if getattr(self, name) < 1:
                raise TargetError(
                    f"target {self.tag}.{name}",
                    "a positive number",
                    str(getattr(self, name)),
                    f"correct `{name}`",
                )

    @classmethod
    def from_tag(cls, tag: str) -> Target:
        """Return the target that conf/target/<tag>.yaml describes; TargetError where there is none."""
        return cls.from_config(section_of(tag))

    @classmethod
    def from_config(cls, values: object, *, where: str = "target") -> Target:
        """Return the target that ``values`` (one YAML's content, with overrides) describe.

        The file of `host` names no machine, so it is resolved here: to the best of the described CPUs that
        this machine is, and its number of cores. Raises ConfigError and TargetError.
        """
        if isinstance(values, Mapping) and values.get("tag") == HOST:
            bind(_HostFile, values, where=where)
            return _this_target()
        if is_several(values):
            fix = "name one of those that it lists"
            raise TargetError(f"{where} {values['tag']}", "one CPU", "several", fix)  # type: ignore[index]
        return bind(cls, values, where=where)

    @property
    def arch(self) -> str:
        """The first word of the triple: x86_64, aarch64, arm64 (Apple's word for it), riscv64."""
        return self.triple.partition("-")[0]

    @property
    def lanes(self) -> int:
        """Float32 values in one vector register."""
        return self.vector_bits // 32

    def spec(self) -> dict[str, Any]:
        """Return TVM's description of this target: the dictionary that ``tvm.target.Target`` takes."""
        cpu: dict[str, Any] = {
            "kind": "llvm",
            "mtriple": self.triple,
            "mcpu": self.cpu,
            "num-cores": self.cores,
        }
        features = [*self.features, *(TUNING if self.dot_product in VNNI else ())]
        if self.libc == "none":
            cpu["vector-width"] = self.vector_bits  # TVM guesses, and says so
        if features:
            cpu["mattr"] = features
        if self.abi is not None:
            cpu["mabi"] = self.abi
        if self.kind == "llvm":
            return cpu
        shared = 48 << 10  # of any GPU without asking for more; TVM guesses as much, and says so
        return {"kind": "cuda", "arch": self.cuda_arch, "max_shared_memory_per_block": shared, "host": cpu}

    def tvm(self) -> tvm.target.Target:
        """Return the TVM target, its CPU host included."""
        from forge_pipeline.ffi import import_ffi

        import_ffi()
        import tvm

        return tvm.target.Target(self.spec())


def section_of(tag: str) -> Any:
    """Return what conf/target/<tag>.yaml holds; TargetError where there is no such file, or it is no YAML."""
    import yaml

    path = conf_dir() / "target" / f"{tag}.yaml"
    if ".." in tag or not path.is_file():
        known = tags()
        raise TargetError(
            where=f"target {tag!r}",
            expected="a target that conf/target describes",
            found="no such tag",
            fix=f"{did_you_mean(tag, known)}`forge-pipeline targets` lists them",
        )
    try:
        values = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except yaml.YAMLError as error:
        found = " ".join(str(error).split())
        raise TargetError(f"target/{tag}.yaml", "plain YAML", found, "correct that file") from error
    return values


def is_several(section: object) -> bool:
    """Tell whether what a file of conf/target holds lists several CPUs, for which one library is built."""
    return isinstance(section, Mapping) and VARIANTS in section


def tags() -> list[str]:
    """Return every tag of conf/target, sorted: those of single CPUs, `host`, and of several."""
    folder = conf_dir() / "target"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def described() -> list[Target]:
    """Return every target that has a fixed description, sorted by tag: all single CPUs but `host`."""
    sections = (section_of(tag) for tag in tags() if tag != HOST)
    return [Target.from_config(section) for section in sections if not is_several(section)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    """All that conf/target/host.yaml says: the machine itself says the rest."""

    tag: str
    description: str


@functools.cache
def _this_target() -> Target:
    """Match this machine once: neither it nor the described targets change while a process runs."""
    machine = this_machine()
    match = best_match(machine, described())
    return replace(match, tag=HOST, description=f"this machine, as {match.tag}", cores=machine.cores)


def best_match(machine: Machine, targets: Sequence[Target], *, where: str = "target host") -> Target:
    """Return the most capable CPU target whose flags and id ``machine``, called ``where`` in messages, has.

    A named CPU is preferred to a generic level with as many flags: its caches are known. Raises TargetError.
    """
    fitting = [
        target
        for target in targets
        if target.kind == "llvm"
        and ARCHITECTURES.get(target.arch) == machine.arch
        and target.libc == machine.libc
        and machine.flags.issuperset(target.cpu_flags)
        and (target.cpu_id is None or target.cpu_id in machine.ids)
    ]
    if not fitting:
        raise TargetError(
            where=where,
            expected="a machine that one of conf/target describes",
            found=f"{machine.arch} on {machine.system}, CPU {', '.join(sorted(machine.ids)) or 'unknown'}",
            fix="name a target (`forge-pipeline targets` lists them), or describe this CPU in conf/target",
        )
    return max(
        fitting,
        key=lambda target: (len(target.cpu_flags), target.cpu_id is not None, -len(target.tag), target.tag),
    )


def why_not_here(target: Target) -> str | None:
    """Return why this machine cannot run code for ``target``, or None where it can."""
    machine = this_machine()
    if target.kind != "llvm":
        return f"needs a GPU ({target.cuda_arch})"
    if ARCHITECTURES.get(target.arch) != machine.arch:
        return f"needs {target.arch}, this machine is {machine.arch}"
    if target.libc != machine.libc:
        return f"needs {target.libc}, this machine has {machine.libc}"
    missing = sorted(set(target.cpu_flags) - machine.flags)
    return f"this machine's CPU lacks {', '.join(missing)}" if missing else None
