"""Weight-only quantization: small integers in storage, floats in arithmetic; for models that memory holds back.

The weights of matrix products get a scale per block of input channels (DequantizeLinear with ``block_size``, opset
21), found by trying a few cuts of each block's largest weight: with 16 levels, clipping a little loses least. The
weights of recurrent layers, where large enough to pay, are int8 with a scale per row. A weight is looked at some
channels at a time, so that little is in memory of a model whose weights are in files.

What a product multiplies by such weights may be rounded to int8 as well, in the same blocks of a row: products then are
exact in integers inside a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import release, tensor_of
from forge_pipeline.ir.qdq.block_activations import in_blocks
from forge_pipeline.ir.recurrent import GATES
from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.quantization.dynamic import rebuild
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.network import Network, at_opset, attribute, layer
from forge_pipeline.quantization.weights import Constants, WeightScheme

OPSET = 21  # the first with blocks and with 4-bit integers
RECURRENT = frozenset(GATES)
PAYS = 1 << 14  # weights; below, scales and nodes weigh as much as what is saved
WINDOW = 1 << 20  # weights that are looked at together
CUTS = np.linspace(1.0, 0.7, 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """The rewritten model, the layers with small weights, and the bytes of weights before and after.

    ``integer_layers`` are those whose activations are rounded too.
    """

    model: ModelProto
    layers: tuple[str, ...]
    integer_layers: tuple[str, ...]
    bytes_before: int
    bytes_after: int


def compress_weights(
    network: Network, *, bits: int, block_size: int, keep_float: tuple[str, ...], rounds_activations: bool = False
) -> Compressed:
    """Return a copy of the network's model with small weights. Raises ModelError where no layer has any to shrink."""
    network = Network(at_opset(network.model, OPSET))
    constants = Constants()
    layers: list[str] = []
    shrunk: dict[str, int] = {}
    rounded: dict[str, str] = {}
    in_integers: list[str] = []
    for source in network.nodes:
        node = NodeProto()
        node.CopyFrom(source)
        for index, axis in _candidates(network, source):
            name = source.input[index]
            if layer(source) in keep_float or network.array(name).size < PAYS:
                continue
            weights = network.array(name)
            if axis is None:
                scheme = WeightScheme(kind=INTEGERS["int8"], limit=127, per_channel=True)
                node.input[index] = constants.weight(name, weights, scheme.scale(weights, 1), 1, scheme, layer(source))
            else:
                node.input[index] = _blocks(constants, name, weights, axis, bits, block_size)
                is_plain = weights.shape[axis] % block_size == 0 and not attribute(source, "transA", 0)
                if rounds_activations and is_plain:
                    left = node.input[0]
                    if left not in rounded:
                        rounded[left] = in_blocks(constants, left, weights.shape[axis], block_size)
                    node.input[0] = rounded[left]
                    in_integers.append(layer(source))
            layers.append(layer(source))
            shrunk[name] = weights.nbytes
            release(network.model)
        constants.nodes.append(node)
    if not layers:
        raise ModelError(
            where="quantize.method=weights",
            expected=f"a MatMul, Gemm or recurrent layer with at least {PAYS} constant float32 weights",
            found="none",
            fix="choose quantize=static or quantize=dynamic",
        )
    made = rebuild(network, constants)
    old = {tensor.name for tensor in network.model.graph.initializer}
    return Compressed(
        model=made,
        layers=tuple(dict.fromkeys(layers)),
        integer_layers=tuple(dict.fromkeys(in_integers)),
        bytes_before=sum(shrunk.values()),
        bytes_after=sum(byte_count(tensor) for tensor in made.graph.initializer if tensor.name not in old),
    )


def block_scales(
    weights: NDArray[Any], axis: int, bits: int, block_size: int
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return a scale per block of ``block_size`` along ``axis``, and the integers; the last block may be shorter."""
    other, length = 1 - axis, weights.shape[axis]
    shape = [0, 0]
    shape[other], shape[axis] = weights.shape[other], -(-length // block_size)
    scale, integers = np.empty(shape, np.float32), np.empty(weights.shape, np.int8)
    step = max(1, WINDOW // max(1, length))
    for start in range(0, weights.shape[other], step):
        part: list[slice] = [slice(None), slice(None)]
        part[other] = slice(start, start + step)
        found = _block_scales(weights[tuple(part)], axis, bits, block_size)
        scale[tuple(part)], integers[tuple(part)] = found
    return scale, integers


def _block_scales(
    weights: NDArray[Any], axis: int, bits: int, block_size: int
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    largest = 2 ** (bits - 1) - 1
    moved = np.moveaxis(weights, axis, -1).astype(np.float32)
    length = moved.shape[-1]
    count = -(-length // block_size)
    padded = np.zeros((*moved.shape[:-1], count * block_size), np.float32)
    padded[..., :length] = moved
    blocks = padded.reshape(*moved.shape[:-1], count, block_size)
    peak = np.abs(blocks).max(axis=-1)
    peak[peak == 0] = 1.0
    best, error = peak / largest, np.full(peak.shape, np.inf)
    for cut in CUTS:
        scale = (peak * cut / largest).astype(np.float32)
        codes = np.clip(np.rint(blocks / scale[..., None]), -largest - 1, largest)
        lost = ((codes * scale[..., None] - blocks) ** 2).sum(axis=-1)
        best, error = np.where(lost < error, scale, best), np.minimum(lost, error)
    scale = best.astype(np.float32)
    codes = np.clip(np.rint(blocks / scale[..., None]), -largest - 1, largest).astype(np.int8)
    integers = codes.reshape(padded.shape)[..., :length]
    return np.moveaxis(scale, -1, axis), np.moveaxis(integers, -1, axis)


def _blocks(constants: Constants, name: str, weights: NDArray[Any], axis: int, bits: int, block_size: int) -> str:
    if f"{name}_scale" not in constants.stored:
        scale, integers = block_scales(weights, axis, bits, block_size)
        integers = integers.astype(ml_dtypes.int4) if bits == 4 else integers
        for made, array in ((f"{name}_scale", scale), (f"{name}_q", integers)):
            constants.stored[made] = tensor_of(array, made)
        constants.nodes.append(
            helper.make_node(
                "DequantizeLinear", [f"{name}_q", f"{name}_scale"], [f"{name}_dq"], f"{name}_dequantize",
                axis=axis, block_size=block_size,
            )
        )  # fmt: skip
    return f"{name}_dq"


def _candidates(network: Network, node: NodeProto) -> list[tuple[int, int | None]]:
    """The operands that may shrink, each with its axis of input channels; None for recurrent weights."""
    found: list[tuple[int, int | None]] = []
    if node.op_type in RECURRENT:
        found = [(1, None), (2, None)]
    elif node.op_type == "MatMul":
        found = [(1, 0)]
    elif node.op_type == "Gemm":
        found = [(1, 1 if attribute(node, "transB", 0) else 0)]
    return [
        (index, axis)
        for index, axis in found
        if node.input[index] in network.constants
        and network.array(node.input[index]).dtype == np.float32
        and network.array(node.input[index]).ndim == (2 if axis is not None else 3)
    ]
