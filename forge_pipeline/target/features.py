"""What /proc/cpuinfo calls the features that LLVM knows by other names: all that code generation may use by itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_X86 = {
    **{
        name: name
        for name in ("cx16", "popcnt", "ssse3", "avx", "avx2", "bmi2", "f16c", "fma", "movbe", "sse4a", "gfni", "vaes")
    },
    **{name: name for name in ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi")},
    **{"sahf": "lahf_lm", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm"},
    **{"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "avxvnni": "avx_vnni"},
    **{"avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq"},
}
_ARM = {
    **{"neon": "asimd", "lse": "atomics", "rdm": "asimdrdm", "fullfp16": "asimdhp", "dotprod": "asimddp"},
    **{"i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "complxnum": "fcma", "jsconv": "jscvt", "fp16fml": "asimdfhm"},
}

CPUINFO_FLAGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM, "riscv64": {}}
)
"""First word of the triple -> LLVM's name of a feature -> the flag."""
