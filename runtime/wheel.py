"""Builds what is native in a wheel of `forge-pipeline-runtime`: for this machine, or the one that FORGE_ARCH names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import build as native

PLATFORMS = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"


class Hook(BuildHookInterface[Any]):
    """Compiles libforge and forge-run, and says which machines the wheel is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the package and the runtime to a wheel; an editable one finds both in the tree."""
        arch = os.environ.get("FORGE_ARCH", os.uname().machine)
        known = [name for name, cpu in native.CPUS.items() if cpu.system == native.LINUX]
        if arch not in known:
            expected = f"a CPU that there is a runtime for: {', '.join(known)}"
            sys.exit(f"error: FORGE_ARCH: expected {expected}, found {arch!r}\nfix: set it to one of those")
        built = native.built(arch)
        root = Path(self.root)
        package = next(path for path in (root / "forge_runtime", root.parent / "forge_runtime") if path.is_dir())
        if version == "editable":
            build_data["force_include_editable"][str(self._path_file(package.parent))] = "_forge_runtime.pth"
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORMS.format(arch)}"
        build_data["force_include"] |= {
            str(package): "forge_runtime",
            str(built / "libforge.so"): "forge_runtime/libforge.so",
        }
        build_data["shared_scripts"][str(built / "forge-run")] = "forge-run"

    def _path_file(self, tree: Path) -> Path:
        path = native.OUT / "forge_runtime.pth"
        path.write_text(f"{tree}\n", "utf-8")
        return path
