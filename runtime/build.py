"""Builds the native runtime for each CPU, with nothing but the ziglang wheel: `python runtime/build.py [ARCH...]`.

Writes out/ARCH/{forge-run, libforge.so, libforge.a} beside this file, and nothing where they are of these sources.
Equal sources give equal bytes on every machine. `forge_runtime` asks for its library here, in the project's own tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
OUT = HERE / "out"
PROJECT = HERE / "pyproject.toml"
STAMP = "digest"
LINUX = "linux-musl"
FILES = ("forge-run", "libforge.so", "libforge.a")


@dataclass(frozen=True, slots=True)
class Cpu:
    """How the runtime is compiled for a CPU: instructions of all of it, and those of faster ciphers, if any.

    ``system`` is what libforge lives in, in zig's words: a C library of POSIX, or Android.
    """

    name: str
    base: str
    fast: str | None = None
    wide: str | None = None
    system: str = LINUX


ANDROID = "linux-android.26"
CPUS = {
    "x86_64": Cpu("x86_64", "x86_64", "x86_64_v3+aes+pclmul+sha", "x86_64_v4+aes+pclmul+vaes+vpclmulqdq"),
    "aarch64": Cpu("aarch64", "generic", "generic+aes+sha2"),
    "riscv64": Cpu("riscv64", "baseline_rv64"),
    "aarch64-android": Cpu("aarch64", "generic", "generic+aes+sha2", system=ANDROID),
}
# What libforge calls of Android's C library: there since API 21 (bionic, libc/libc.map.txt). Its linker looks only in
# libraries that are named, and has no thread-local data before API 29: zig keeps it by pthread_getspecific.
BIONIC = (
    *(
        "__errno",
        "__stack_chk_fail",
        "abort",
        "free",
        "getauxval",
        "malloc",
        "mmap64",
        "mremap",
        "munmap",
        "posix_memalign",
        "realloc",
    ),
    *("pthread_attr_destroy", "pthread_attr_init", "pthread_attr_setguardsize", "pthread_attr_setstacksize"),
    *("pthread_create", "pthread_getspecific", "pthread_join", "pthread_key_create", "pthread_mutex_lock"),
    *("pthread_mutex_unlock", "pthread_setspecific", "sysconf"),
)
NO_HEADERS = "include sys_include crt msvc_lib kernel32_lib gcc cc darwin_sdk"
# Symbols and unwind tables are of no use where nothing is printed, thrown or debugged.
# One job at a time in a process: the numbers of nameless symbols depend on which is done first.
PLAIN = ("-fstrip", "-ffunction-sections", "-fno-unwind-tables", "-fomit-frame-pointer")
# Of no C library: whichever the process has, glibc or musl, gives what is missing, which is POSIX.
SHARED = (
    "-shared",
    "-O2",
    "--hash-style=gnu",
    "--gc-sections",
    "--icf=all",
    "-z",
    "now",
    "-z",
    "relro",
    "--strip-all",
    "--build-id=none",
    "-soname=libforge.so",
)
EXPORTS = "{ global: forge_*; local: *; };\n"


def digest() -> str:
    """Return what decides the bytes of a build: its sources, this file, and the project's pins, zig's among them."""
    found = hashlib.sha256()
    for path in (PROJECT, Path(__file__), *sorted(SOURCES.glob("*.zig"))):
        found.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def zig(arguments: list[str | Path], cache: Path, folder: Path = SOURCES) -> None:
    """Run zig, in the folder of the sources by default. Ends the program where it fails."""
    import subprocess  # what finds its library built needs none of it

    caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=False)
    if done.returncode:
        sys.exit(
            f"error: zig {arguments[0]}: expected exit code 0, found {done.returncode}\nfix: read what it says above"
        )


def at_once(*steps: Callable[[], None]) -> None:
    """Do what does not wait for each other, each step in processes of its own."""
    with ThreadPoolExecutor(len(steps)) as threads:
        for done in [threads.submit(step) for step in steps]:
            done.result()


def build(cpu: Cpu, release: str, cache: Path, folder: Path) -> None:
    """Compile the ciphers for each set of instructions, then the executable and the libraries around them."""
    parts = {"portable": ("crypto.zig", cpu.base, "ReleaseSmall" if cpu.fast else "ReleaseFast")}
    if cpu.fast is not None:
        parts["fast"] = "crypto.zig", cpu.fast, "ReleaseFast"
    if cpu.wide is not None:
        parts["wide"] = "wide.zig", cpu.wide, "ReleaseFast"

    def ciphers(name: str) -> None:
        source, instructions, mode = parts[name]
        options = ["-target", f"{cpu.name}-linux-none", f"-mcpu={instructions}", "-O", mode, "-fPIC", *PLAIN]
        zig(["build-obj", "-j1", *options, source, f"-femit-bin={folder / name}.o"], cache)

    at_once(*(partial(ciphers, name) for name in parts))
    objects = [folder / f"{name}.o" for name in parts]
    at_once(partial(executable, cpu, release, objects, cache, folder), partial(libraries, cpu, objects, cache, folder))


def compiled(path: str, *modules: str, checks: Sequence[str] = ()) -> list[str | Path]:
    """Return zig's words for the interfaces, to be small, and `core` with the language's checks."""
    uses = [word for module in ("core", *modules) for word in ("--dep", module)]
    core = ["-O", "ReleaseSafe", *checks, *PLAIN, "-Mcore=core.zig"]
    return ["-O", "ReleaseSmall", *PLAIN, *uses, f"-Mroot={path}", *core]


def executable(cpu: Cpu, release: str, objects: Sequence[Path], cache: Path, folder: Path) -> None:
    """Link forge-run."""
    version = folder / "version.zig"
    version.write_text(f'pub const version = "{release}";\n', "utf-8")
    target = ["-target", f"{cpu.name}-linux-none", f"-mcpu={cpu.base}", "-fPIE"]
    run = [*compiled("forge_run.zig", "version"), f"-Mversion={version}", *objects, "--gc-sections"]
    zig(["build-exe", "-j1", *target, *run, f"-femit-bin={folder / 'forge-run'}"], cache)


def libraries(cpu: Cpu, objects: Sequence[Path], cache: Path, folder: Path) -> None:
    """Link libforge.so and put libforge.a together: what needs a C library, and checks its stack."""
    target = ["-target", f"{cpu.name}-{cpu.system}", f"-mcpu={cpu.base}", "-fPIC"]
    static: list[str | Path] = ["-static", "-lc", "-fcompiler-rt", f"-femit-bin={folder / 'whole.a'}"]
    named = bionic(cpu, cache, folder) if cpu.system == ANDROID else []
    if named:  # zig carries no headers of Android's, which code in Zig alone does not ask for
        lines = (f"{name}_dir={folder}\n" for name in NO_HEADERS.split())
        (folder / "libc").write_text("".join(lines), "utf-8")
        static += ["--libc", str(folder / "libc")]
    root = compiled("libforge.zig", checks=["-fstack-protector"])
    zig(["build-lib", "-j1", *target, *root, *objects, *static], cache)
    (folder / "exports").write_text(EXPORTS, "utf-8")
    linked: list[str | Path] = ["-o", folder / "libforge.so", f"--version-script={folder / 'exports'}"]
    zig(["ld.lld", *SHARED, *linked, "--whole-archive", folder / "whole.a", *named], cache)
    parts = folder / "parts"  # an archive names its members by their paths: once more, without folders
    parts.mkdir()
    zig(["ar", "x", folder / "whole.a"], cache, parts)
    zig(["ar", "rcsD", folder / "libforge.a", *sorted(path.name for path in parts.iterdir())], cache, parts)


def bionic(cpu: Cpu, cache: Path, folder: Path) -> list[str | Path]:
    """Return what names Android's C library to the linker, and has it refuse what that does not have."""
    empty, stub = folder / "empty", folder / "libc.so"
    empty.touch()
    defined = [f"--defsym={symbol}=0" for symbol in BIONIC]
    machine = ["-m", f"{cpu.name}linux"]
    zig(["ld.lld", *machine, "-shared", "-soname=libc.so", *defined, "-o", stub, "-b", "binary", empty], cache)
    return ["--no-whole-archive", "--no-undefined", stub]


def release() -> str:
    """Return the version of the distribution `forge-pipeline-runtime`."""
    import tomllib

    project: dict[str, str] = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    return project["version"]


def built(name: str) -> Path:
    """Return the folder with the runtime for a CPU, built now unless it is there and of these sources."""
    folder, wanted = OUT / name, digest()
    if _is_there(folder, wanted):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_there(folder, wanted):  # who waited finds it built
            _renew(CPUS[name], folder)
            (folder / STAMP).write_text(wanted, "utf-8")
    return folder


def _is_there(folder: Path, wanted: str) -> bool:
    stamp = folder / STAMP
    return stamp.exists() and stamp.read_text("utf-8") == wanted and all((folder / file).exists() for file in FILES)


def _renew(cpu: Cpu, folder: Path) -> None:
    import shutil
    import tempfile

    (folder / STAMP).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="forge-runtime-") as made:
        build(cpu, release(), OUT / "cache", Path(made))
        for file in FILES:
            shutil.copy2(Path(made) / file, folder / f"{file}.new")
            (folder / f"{file}.new").replace(folder / file)


def main() -> None:
    """Build what is asked for, all by default, and say how large it is."""
    for name in sys.argv[1:] or CPUS:
        if name not in CPUS:
            sys.exit(f"error: {name}: expected one of {', '.join(CPUS)}, found another\nfix: name one of them")
        folder = built(name)
        sizes = ", ".join(f"{file} {(folder / file).stat().st_size}" for file in FILES)
        print(f"{name}: {sizes}")


if __name__ == "__main__":
    main()
