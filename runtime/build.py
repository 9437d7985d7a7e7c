"""Builds the native runtime for each CPU, with nothing but the ziglang wheel: `python runtime/build.py [ARCH...]`.

Writes out/ARCH/{forge-run, libforge.so, libforge.a} beside this file, and nothing where they are of these sources.
Equal sources give equal bytes on every machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
OUT = HERE / "out"
FILES = ("forge-run", "libforge.so", "libforge.a")


@dataclass(frozen=True, slots=True)
class Cpu:
    """How the runtime is compiled for a CPU: instructions of all of it, and those of the fast ciphers, if any."""

    name: str
    base: str
    fast: str | None


CPUS = {
    "x86_64": Cpu("x86_64", "x86_64", "x86_64_v3+aes+pclmul+sha"),
    "aarch64": Cpu("aarch64", "generic", "generic+aes+sha2"),
    "riscv64": Cpu("riscv64", "baseline_rv64", None),
}
# Symbols and unwind tables are of no use where nothing is printed, thrown or debugged.
# One job at a time: the numbers of nameless symbols depend on which is done first.
PLAIN = ("-fstrip", "-ffunction-sections", "-fno-unwind-tables")


def digest(release: str) -> str:
    """Return what decides the bytes of a build: its sources, this file, the release of zig and of the project."""
    found = hashlib.sha256(f"{version('ziglang')}\n{release}\n".encode())
    for path in (Path(__file__), *sorted(SOURCES.glob("*.zig"))):
        found.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def zig(arguments: list[str | Path], cache: Path, folder: Path = SOURCES) -> None:
    """Run zig, in the folder of the sources by default. Ends the program where it fails."""
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=False)
    if done.returncode:
        sys.exit(
            f"error: zig {arguments[0]}: expected exit code 0, found {done.returncode}\nfix: read what it says above"
        )


def build(cpu: Cpu, release: str, cache: Path, folder: Path) -> None:
    """Compile the ciphers once or twice, then the executable and the libraries around them."""

    def ciphers(name: str, instructions: str, mode: str) -> Path:
        path = folder / f"{name}.o"
        options = ["-target", f"{cpu.name}-linux-none", f"-mcpu={instructions}", "-O", mode, "-fPIC", *PLAIN]
        zig(["build-obj", "-j1", *options, "crypto.zig", f"-femit-bin={path}"], cache)
        return path

    objects: list[str | Path] = [ciphers("portable", cpu.base, "ReleaseSmall" if cpu.fast else "ReleaseFast")]
    if cpu.fast is not None:
        objects.append(ciphers("fast", cpu.fast, "ReleaseFast"))
    (folder / "version.zig").write_text(f'pub const version = "{release}";\n', "utf-8")

    def root(path: str, *modules: str) -> list[str | Path]:
        """Compile the interfaces to be small, and `core` with the language's checks."""
        uses = [word for module in ("core", *modules) for word in ("--dep", module)]
        core = ["-O", "ReleaseSafe", *PLAIN, "-Mcore=core.zig"]
        return ["-O", "ReleaseSmall", *PLAIN, *uses, f"-Mroot={path}", *core]

    target = ["-target", f"{cpu.name}-linux-none", f"-mcpu={cpu.base}"]
    run = [*root("forge_run.zig", "version"), f"-Mversion={folder / 'version.zig'}", *objects]
    zig(["build-exe", "-j1", *target, *run, "--gc-sections", f"-femit-bin={folder / 'forge-run'}"], cache)
    target = ["-target", f"{cpu.name}-linux-gnu", f"-mcpu={cpu.base}", "-fPIC"]
    library = [*root("libforge.zig"), *objects, "-lc"]
    shared = ["-dynamic", "-fsoname=libforge.so", "--gc-sections", f"-femit-bin={folder / 'libforge.so'}"]
    zig(["build-lib", "-j1", *target, *library, *shared], cache)
    static = ["-static", "-fcompiler-rt", f"-femit-bin={folder / 'whole.a'}"]
    zig(["build-lib", "-j1", *target, *library, *static], cache)
    parts = folder / "parts"  # an archive names its members by their paths: once more, without folders
    parts.mkdir()
    zig(["ar", "x", folder / "whole.a"], cache, parts)
    zig(["ar", "rcsD", folder / "libforge.a", *sorted(path.name for path in parts.iterdir())], cache, parts)


def main() -> None:
    """Build what is asked for, all by default, and say how large it is."""
    release = version("forge-pipeline")
    for name in sys.argv[1:] or CPUS:
        if name not in CPUS:
            sys.exit(f"error: {name}: expected one of {', '.join(CPUS)}, found another\nfix: name one of them")
        folder, stamp = OUT / name, OUT / name / "digest"
        wanted = digest(release)
        is_there = (
            stamp.exists() and stamp.read_text("utf-8") == wanted and all((folder / file).exists() for file in FILES)
        )
        if not is_there:
            folder.mkdir(parents=True, exist_ok=True)
            stamp.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(prefix="forge-runtime-") as made:
                build(CPUS[name], release, OUT / "cache", Path(made))
                for file in FILES:
                    shutil.copy2(Path(made) / file, folder / f"{file}.new")
                    (folder / f"{file}.new").replace(folder / file)
            stamp.write_text(wanted, "utf-8")
        sizes = ", ".join(f"{file} {(folder / file).stat().st_size}" for file in FILES)
        print(f"{name}: {'there' if is_there else 'built'}: {sizes}")


if __name__ == "__main__":
    main()
