"""What TVM has every kernel compare first, type, axes, strides, extents, offset and place of each argument, left out.

That is more code than most kernels are: 60 % of the bytes of a detector. It goes where a program is known to call the
kernel with what it takes (``program.arguments``). The code says which program that is, and a reader refuses others.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm

NEEDLESS: Final = "forge_needless_checks"
"""The attribute of a kernel whose calls are known to fit."""
CALLER: Final = "forge_caller"
"""The attribute of a kernel that nothing calls, and its name: the digest of the program that calls the others, in
hexadecimal digits."""
SYMBOL: Final = "__forge_program"
"""What the code calls the digest, 32 bytes."""


def without_checks(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel that TVM has made callable; one that is marked without comparisons of its arguments."""
    attributes = function.attrs or {}
    body = function.body
    if NEEDLESS in attributes:
        body = tvm_ffi.structural_map(body, [(tirx.AssertStmt, _nothing)])
    if CALLER in attributes:
        body = tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_data(attributes[CALLER])), body)
    return function.with_body(body)


def _nothing(_assertion: Any) -> Any:
    return tirx.Evaluate(0)


def _data(digest: str) -> str:
    content = "".join(f"\\{byte:02X}" for byte in bytes.fromhex(digest))
    return f'@{SYMBOL} = constant [{len(digest) // 2} x i8] c"{content}"\n'
