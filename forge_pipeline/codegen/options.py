"""What a person may choose about a compilation: the part of conf/compile that a code generator sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OptLevel = Literal[0, 1, 2, 3, 4]
ChannelLayout = Literal["first", "last"]
FloatArithmetic = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to compile.

    ``generator`` names an entry of ``lowering.GENERATORS``. ``opt_level`` means: 0 one kernel per operator,
    for debugging; 1 operators fused; 2 constants folded too; 3 everything that computes what the model says
    up to rounding; 4 also approximations of transcendental functions. ``float16`` stores weights in half
    precision and, on a GPU, computes in it wherever an operator permits, with the model's own dtypes at its
    interface. ``float_arithmetic`` is what a CPU computes products and convolutions in, and what goes on with their
    results; with bfloat16, products by constant weights only, whose sums are float32. ``channel_layout`` is where
    convolutions keep their channels; None leaves the choice to the generator. ``amx``: products of bytes
    and of bfloat16 may use Intel's tile registers; None: where the target promises them. ``dims`` are sizes of open
    extents, by name, that get functions of their own; ``open_form``: one for any other size is there too.
    ``relocatable``: the code is an object for a linker, not a shared object. ``state``: the output that each input is
    of the call before, which a session keeps, or `auto`; ``state_max``: to how many tokens a cache grows.
    ``argument_checks``: kernels compare their arguments in every call, and are anybody's to call: for who changes
    programs, such as a fuzzer.
    """

    generator: str
    opt_level: OptLevel
    float16: bool
    channel_layout: ChannelLayout | None
    float_arithmetic: FloatArithmetic = "float32"
    amx: bool | None = None
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    open_form: bool = True
    relocatable: bool = False
    state: Mapping[str, str] | str | None = None
    state_max: int = 2048
    argument_checks: bool = False

    @property
    def computes_or_stores_halves(self) -> bool:
        """Whether results are those of half precision, and compared as such."""
        return self.float16 or self.float_arithmetic != "float32"
