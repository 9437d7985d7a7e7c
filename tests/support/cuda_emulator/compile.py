"""In nvcc's place: CUDA source as a shared object for this CPU, each kernel with a function that launches it.

`driver.cpp` calls these functions where TVM's runtime launches kernels. Called as nvcc is: `... -o RESULT SOURCE`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SHARED = 227 << 10
"""Bytes that a kernel may ask for when it is launched, on a GPU of compute capability 9.0."""
HERE = Path(__file__).resolve().parent
COMPILE = [
    *(sys.executable, "-m", "ziglang", "c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-nostdlib++"),
    f"-I{HERE / 'include'}",
]


def launcher(name: str, parameters: str) -> str:
    """Return a function that launches a kernel with arguments from where their addresses are given."""
    kinds = [re.sub(r"__restrict__|\w+$", "", parameter.strip()).strip() for parameter in parameters.split(",")]
    arguments = ", ".join(f"*static_cast<{kind}*>(given[{index}])" for index, kind in enumerate(kinds))
    return (
        f'extern "C" void {name}_launch(dim3 grid, dim3 block, void** given) {{\n'
        f"  emulated::launch(grid, block, [](void** given) {{ {name}({arguments}); }}, given);\n}}\n"
        f'extern "C" const unsigned {name}_parameters = {len(kinds)};'
    )


def main(out: str, source: str) -> int:
    """Compile; return the compiler's exit code."""
    text = Path(source).read_text()
    text = re.sub(r"extern (__shared__ .*)\[\];", rf"\1[{SHARED}];", text)
    kernels = dict(re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)", text))
    Path("emulated.cpp").write_text("\n".join([text, *(launcher(*kernel) for kernel in kernels.items())]))
    return subprocess.run([*COMPILE, "-include", "cuda.h", "emulated.cpp", "-o", out], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("-o") + 1], sys.argv[-1]))
