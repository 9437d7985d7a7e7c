"""From object files to one shared object, for any target, with the linkers that the ziglang wheel carries.

ELF is linked by LLD itself (`zig ld.lld`): no compiler driver, no C library built or looked up, nothing cached, and
nothing taken from PATH, so that equal objects give equal bytes on every machine. What the kernels call in the C
library is resolved against stubs written by the linker from the lists below: the artifact names the libraries
(libm.so.6), not a version of them, and a symbol that is in none of them is refused here, not on the device.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from forge_pipeline import children
from forge_pipeline.errors import CompileError, TargetError
from forge_pipeline.target import Target

MEMORY = ("memcpy", "memmove", "memset", "memcmp", "bcmp")
# C99, <math.h>: what LLVM and TVM's lowering of Relax call, each for double and, with the suffix, for float
MATH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf"),
    *("erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot"),
    *("ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb", "lrint", "lround", "modf"),
    *("nearbyint", "nextafter", "pow", "remainder", "rint", "round", "scalbn", "sin", "sincos", "sinh", "sqrt"),
    *("tan", "tanh", "tgamma", "trunc"),
)
LIBM = (*MATH, *(f"{name}f" for name in MATH))
# Android's since API 21, by bionic's own lists (libc.map.txt, libm.map.txt): `ldexp` is in libc, `bcmp` in neither
BIONIC = {
    "libc.so": (*(name for name in MEMORY if name != "bcmp"), "ldexp"),
    "libm.so": tuple(name for name in LIBM if name != "ldexp"),
}
RUNTIME_PREFIX = "TVMFFI"
"""Symbols of the TVM runtime: it is in the process that loads the library, linked into it or beside it."""

SECONDS = 300


@dataclass(frozen=True, slots=True)
class CLibrary:
    """The shared libraries of one C library by the name a program asks for, each with what kernels use of it."""

    libraries: Mapping[str, tuple[str, ...]]


ELF_LIBRARIES = {
    "glibc": CLibrary(MappingProxyType({"libc.so.6": MEMORY, "libm.so.6": LIBM})),
    "bionic": CLibrary(MappingProxyType(BIONIC)),
}
EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux", "riscv64": "elf64lriscv"}
BARE_EMULATION = "armelf"
ELF = b"\x7fELF"
RELOCATABLE = 1  # ELF's type of an object

# No build id (it would be the one thing that a rebuild has to match), no paths, read-only tables after loading.
ELF_OPTIONS = (
    *("-shared", "--build-id=none", "--hash-style=gnu", "--gc-sections"),
    *("--strip-all", "--as-needed", "-z", "relro", "-z", "now", "-z", "noexecstack", "-z", "text"),
    *("--no-undefined", "--warn-unresolved-symbols", "--threads=1"),
)
UNDEFINED = re.compile(r"undefined symbol: (\S+)")


def can_name(target: Target) -> bool:
    """Whether the linker for ``target`` can give a function a name."""
    return target.libc in ELF_LIBRARIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """``names`` are those that functions get, with what each is called in its object; ``hidden``: a pattern of symbols
    of objects that nobody sees."""

    names: Mapping[str, str]
    hidden: str

    def options(self, folder: Path) -> list[str]:
        """Return the linker's options; what they refer to is written into ``folder``."""
        script = folder / "hidden"
        script.write_text(f"{{ local: {self.hidden}; }};\n", "utf-8")
        return [f"--version-script={script}", *(f"--defsym={name}={own}" for name, own in self.names.items())]


def link(objects: Sequence[Path], target: Target, naming: Naming | None = None) -> bytes:
    """Return the shared object of ``objects`` for ``target``, which gives names where ``can_name`` says so.

    Raises CompileError with the linker's words, or with the names of the symbols that no library on the device has.
    """
    with tempfile.TemporaryDirectory(prefix="forge-link-") as folder:
        if target.libc == "apple":
            return _link_macho(objects, target, Path(folder))
        return _link_elf(objects, target, naming, Path(folder))


def relocatable(objects: Sequence[Path], target: Target) -> bytes:
    """Return one object of several: what is linked again, into an image or by ``loadable``. Raises CompileError."""
    with tempfile.TemporaryDirectory(prefix="forge-link-") as folder:
        result = Path(folder) / "kernels.o"
        if target.libc == "apple":
            options = ["-target", since(target), "-fstrip", f"-femit-bin={result}"]
            zig(["build-obj", *options, *objects], target.tag, _caches(Path(folder)))
            return result.read_bytes()
        zig(["ld.lld", "-r", "-m", _emulation(target), "--strip-debug", "-o", result, *objects], target.tag)
        return result.read_bytes()


def loadable(elf: bytes, target: Target) -> bytes:
    """Return the shared object: ``elf`` itself, or what it is where it is relocatable. Raises CompileError."""
    if elf[:4] != ELF or elf[16:18] != RELOCATABLE.to_bytes(2, "little"):
        return elf
    with tempfile.TemporaryDirectory(prefix="forge-link-") as folder:
        path = Path(folder) / "kernels.o"
        path.write_bytes(elf)
        return link([path], target)


def undefined(archive: Path, target: Target, *, entry: str) -> list[str]:
    """Return what ``archive`` needs from elsewhere to run the function ``entry``, sorted. Raises CompileError.

    For macOS it is linked into a program with that system's library, and an error of the linker names what is missing.
    """
    with tempfile.TemporaryDirectory(prefix="forge-link-") as folder:
        if target.libc == "apple":
            main = Path(folder) / "main.c"
            main.write_text(f"extern int {entry}(void *, ...);\nint main(void) {{ return {entry}(0); }}\n", "utf-8")
            link_program([main, archive], target, Path(folder) / "program")
            return []
        options = ["-m", _emulation(target), "-e", entry, "-u", entry, "--gc-sections", "--warn-unresolved-symbols"]
        said = zig(["ld.lld", *options, "-o", Path(folder) / "image", archive], target.tag)
    return sorted(set(UNDEFINED.findall(said)))


def _emulation(target: Target) -> str:
    return BARE_EMULATION if target.libc == "none" else EMULATIONS[target.arch]


def _link_elf(objects: Sequence[Path], target: Target, naming: Naming | None, folder: Path) -> bytes:
    emulation = EMULATIONS.get(target.arch)
    if emulation is None:
        raise TargetError(
            where=f"target {target.tag}.triple",
            expected="a CPU that can be linked for: " + ", ".join(EMULATIONS),
            found=target.triple,
            fix="use one of those, or add its linker emulation to codegen/link.py",
        )
    libraries = ELF_LIBRARIES[target.libc].libraries
    stubs = [stub_library(name, symbols, emulation, folder) for name, symbols in libraries.items()]
    result = folder / "model_library.so"
    options = [*ELF_OPTIONS, *([] if naming is None else naming.options(folder))]
    arguments: list[str | Path] = ["-m", emulation, *options, "-o", result, *objects, *stubs]
    said = zig(["ld.lld", *arguments], target.tag)
    missing = sorted(name for name in set(UNDEFINED.findall(said)) if not name.startswith(RUNTIME_PREFIX))
    if missing:
        raise CompileError(
            where=f"link for {target.tag}",
            expected=f"calls into {', '.join(libraries)} and the TVM runtime only",
            found=f"calls of {', '.join(missing)}",
            fix="compile without the operator that needs it, or add the symbol to codegen/link.py if the device has it",
        )
    return result.read_bytes()


def stub_library(
    soname: str, symbols: Sequence[str], emulation: str, folder: Path, *, version: str | None = None
) -> Path:
    """Write a shared library that only defines names, of one symbol version if given, for others to be linked with."""
    empty, stub = folder / "empty", folder / soname
    empty.touch()
    arguments: list[str | Path] = ["-m", emulation, "-shared", "-soname", soname, "-o", stub, "-b", "binary", empty]
    arguments += [f"--defsym={symbol}=0" for symbol in symbols]
    if version is not None:
        (folder / "versions").write_text(f"{version} {{ global: *; }};\n", "utf-8")
        arguments.append(f"--version-script={folder / 'versions'}")
    zig(["ld.lld", *arguments], soname)
    return stub


def _link_macho(objects: Sequence[Path], target: Target, folder: Path) -> bytes:
    """Link with zig's own linker; without the C library it needs its cache for nothing, so that may go at once."""
    result = folder / "model_library.so"
    options = ["-shared", "-nostdlib", "-Wl,-undefined,dynamic_lookup", "-Wl,-install_name,model_library.so"]
    zig(["cc", "-target", macos(target), *options, "-o", result, *objects], target.tag, _caches(folder))
    return result.read_bytes()


def link_program(sources: Sequence[Path], target: Target, result: Path) -> None:
    """Link a program for macOS out of C, objects and archives, with that system's library. Raises CompileError."""
    options = ["-fno-sanitize=undefined", "-nostdlib", "-lSystem", "-Wl,-dead_strip"]
    zig(["cc", "-target", since(target), *sources, *options, "-o", result], target.tag, _caches(result.parent))


def macos(target: Target) -> str:
    """Return what zig calls a target with macOS."""
    return f"{'aarch64' if target.arch == 'arm64' else target.arch}-macos"


def since(target: Target) -> str:
    """Return the same, with the oldest release of the system that the target is for."""
    release = re.search(r"macos(\d+)", target.triple)
    return f"{macos(target)}.{release[1]}.0" if release else macos(target)


def _caches(folder: Path) -> dict[str, str]:
    return {name: str(folder / "cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}


def zig(
    arguments: Sequence[str | Path],
    what: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> str:
    """Run the wheel's own zig program, found without PATH, in ``folder``, and return what it says on stderr.

    Raises CompileError about ``what`` with its words, and TargetError where there is none.
    """
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise TargetError("linker", "the ziglang package", "not installed", "pip install forge-pipeline again")
    command = [str(Path(package.origin).parent / "zig"), *map(str, arguments)]
    environment = children.environment() | dict(settings)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(
            f"link for {what}", "the linker of ziglang to run", str(error), "reinstall ziglang"
        ) from error
    if done.returncode != 0:
        raise CompileError(
            where=f"link for {what}",
            expected="objects that link",
            found=f"exit code {done.returncode}: {' '.join(done.stderr.split())[:500]}",
            fix="see what the linker says; if its disk is full, free some space",
        )
    return done.stderr
