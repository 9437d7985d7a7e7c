"""Instructions as LLVM knows them, beside what they compute, and the TVM script that both sides are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import script
from tvm.s_tir import TensorIntrin

from forge_pipeline.codegen.layout.builder import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """``name`` is the manual's, ``llvm`` is LLVM's, by the bits of a vector where there are several.

    ``meaning`` computes it with numpy arrays, one for each vector, as its manual says; where it knows AMX's tiles,
    with those first. Tests compute with it on any machine.
    """

    name: str
    llvm: str | Mapping[int, str]
    meaning: Callable[..., Any]

    def script(self, dtype: str, *arguments: str, bits: int = 128) -> str:
        """Return the script of a call with a result of ``dtype``."""
        return call(self.llvm if isinstance(self.llvm, str) else self.llvm[bits], dtype, *arguments)


def add_products(sums: Array, left: Array, right: Array) -> Array:
    """Return int32 sums, modulo 2^32, of which each takes as many neighbouring products as there are for it."""
    products: Array = left.astype(np.int32) * right.astype(np.int32)
    total: Array = sums + products.reshape(sums.size, -1).sum(axis=1, dtype=np.int32)
    return total


def call(llvm: str, dtype: str, *arguments: str) -> str:
    """Return the script of a call of one of LLVM's intrinsics."""
    name = f"T.llvm_lookup_intrinsic_id('{llvm}')"
    return f"T.call_llvm_pure_intrin({name}, {', '.join(arguments)}, dtype='{dtype}')"


def shuffle(vectors: str, places: Sequence[int] | range) -> str:
    """Return the script of a vector made of elements of others."""
    return f"T.Shuffle([{vectors}], [{', '.join(map(str, places))}])"


def reinterpret(value: str, dtype: str) -> str:
    """Return the script of the same bits in another type."""
    return f"T.reinterpret({value}, dtype='{dtype}')"


def fence(sums: str, lanes: int, dtype: str = "int32", parts: int = 1) -> str:
    """Return the script of sums that LLVM must have as they are at this place.

    Behind an addition, a fence keeps LLVM from adding up the products of several steps first, for which registers do
    not suffice. Before it, sums are read in the type in which they are written: else LLVM leaves some in memory.
    ``parts`` of ``dtype`` are in a lane of 32 bits.
    """
    floats = f"float32x{lanes}"
    return reinterpret(call("llvm.arithmetic.fence", floats, reinterpret(sums, floats)), f"{dtype}x{parts * lanes}")


def add_modulo(sums: str, product: str, lanes: int) -> str:
    """Return the script of sums and a product of int32, between fences; there is no overflow modulo 2^32."""
    return fence(f"{fence(sums, lanes, 'uint32')} + {reinterpret(product, f'uint32x{lanes}')}", lanes)


def extents_of(shape: Sequence[int]) -> str:
    """Return the script of a shape."""
    return f"({', '.join(map(str, shape))},)"


def whole(shape: Sequence[int]) -> str:
    """Return the script of the region that a whole buffer is."""
    return ", ".join(f"0:{extent}" for extent in shape)


def multiply_add(axes: Mapping[str, Any], reduced: str, sums: str, value: str, weight: str) -> str:
    """Return the script of a tensorize pattern: for all ``axes``, C[sums] += value * B[weight].

    ``axes`` maps letters to extents, ``reduced`` has those that are summed over; ``sums`` and ``weight`` are the
    letters of the axes of C and B in order, and ``value`` is a script of an int32 with such letters in braces. An axis
    of one element is none, as TVM drops them from what it compares.
    """
    named = [axis for axis, extent in axes.items() if extent != 1]
    bound = sorted(named, key=lambda axis: axis in reduced)
    kinds = "".join("R" if axis in reduced else "S" for axis in bound)
    names = {axis: f"v{axis}" if axis in named else "0" for axis in axes}
    total, factor = (", ".join(names[axis] for axis in letters) for letters in (sums, weight))
    return f"""for {", ".join(named)} in T.grid({", ".join(str(axes[axis]) for axis in named)}):
            with T.sblock('update'):
                {", ".join(names[axis] for axis in bound)} = T.axis.remap('{kinds}', [{", ".join(bound)}])
                C[{total}] = C[{total}] + {value.format(**names)} * T.Cast('int32', B[{factor}])"""


def register(name: str, frame: str, pattern: str, body: str, params: Mapping[str, Any]) -> None:
    """Make a tensor intrinsic known by its pattern and by what it does, two bodies of one frame, unless it is."""
    if TensorIntrin.get(name, allow_missing=True) is None:
        texts = (frame.format(**params, body=part) for part in (pattern, body))
        TensorIntrin.register(name, *(script.from_source(text) for text in texts))
