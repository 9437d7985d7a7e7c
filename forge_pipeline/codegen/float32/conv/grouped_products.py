"""Convolutions of one pixel in groups whose channels fill no vectors, as products of matrices, a group each.

An image in blocks of a vector has the channels of two such groups in one block: they would be moved apart, filled up,
and moved together again. As products of (filters, channels) by (channels, pixels) nothing is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import op

from forge_pipeline.codegen.float32.conv.geometry import conv2d_geometry
from forge_pipeline.codegen.float32.conv.groups import fill_groups, pad_groups
from forge_pipeline.codegen.layout.origins import Emitter, Origins
from forge_pipeline.codegen.layout.symbolic_extents import cloned

ALONE = frozenset({"relax.nn.relu", "relax.clip", "relax.sigmoid", "relax.tanh", "relax.nn.silu", "relax.nn.leakyrelu"})
"""Operators on each number by itself, which go on where the product is."""


def grouped_products(module: tvm.IRModule, lanes: int, origins: Origins) -> tvm.IRModule:
    """Return ``module`` with such convolutions of `main` as products, for vectors of ``lanes``; itself without any."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not any(_is_moved(binding.value, lanes) for binding in bindings):
        return module
    builder = Emitter(origins, tvm.IRModule({k: v for k, v in module.functions_items() if k.name_hint != "main"}))
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    new = dict(zip(main.params, parameters, strict=True))
    products: dict[Any, Any] = {}  # (batch, groups, filters, pixels), by what they are in the old function
    with builder.function("main", parameters, attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings:
                builder.nodes = origins.of(binding.var)
                value = cloned(binding.value, new)
                if isinstance(binding, relax.MatchCast):
                    new[binding.var] = builder.match_cast(value, binding.ty)
                    continue
                product = _product(value) if _is_moved(value, lanes) else _continued(binding.value, value, products)
                if product is not None:
                    products[binding.var] = builder.emit(product)
                    value = op.reshape(products[binding.var], binding.var.ty.shape)
                new[binding.var] = builder.emit(value)
            output = builder.emit_output(cloned(main.body.body, new))
        builder.emit_func_output(output)
    return builder.finalize()


def _is_moved(value: relax.Expr, lanes: int) -> bool:
    """Return whether a value is a convolution of known size, of one pixel, whose groups would be moved apart."""
    name = getattr(getattr(value, "op", None), "name", "")
    if name != "relax.nn.conv2d" or not isinstance(value.args[1], GenericConst) or value.attrs.data_layout != "NCHW":
        return False
    weight = value.args[1].value.numpy()
    geometry = conv2d_geometry(value, weight.shape)
    is_pixel = geometry.kernel == (1, 1) and geometry.strides == (1, 1) and not any(geometry.padding)
    if geometry.groups == 1 or not is_pixel or not geometry.is_static or str(weight.dtype) != "float32":
        return False
    return pad_groups(*fill_groups(geometry, weight, lanes), lanes) is not None


def _product(call: relax.Call) -> relax.Expr:
    """Return the convolution ``call`` as a product for each group."""
    image, weight = call.args
    batch, channels, *size = image.ty.shape.values
    groups, filters = int(call.attrs.groups), int(weight.ty.shape.values[0])
    taken, pixels = int(channels) // groups, int(size[0]) * int(size[1])
    matrix = relax.const(weight.value.numpy().reshape(1, groups, filters // groups, taken))
    return op.matmul(matrix, op.reshape(image, (batch, groups, taken, pixels)))


def _continued(old: relax.Expr, value: relax.Expr, products: Mapping[Any, Any]) -> relax.Expr | None:
    """Return an operator on numbers by themselves, of a product; ``value`` is the ``old`` one with new variables."""
    name = getattr(getattr(old, "op", None), "name", "")
    product = products.get(old.args[0]) if name in ALONE or name == "relax.add" else None
    if product is None:
        return None
    if name in ALONE:
        return relax.Call(value.op, [product, *value.args[1:]], value.attrs, value.ty_args)
    shape, other = product.ty.shape.values, list(value.args[1].ty.shape.values)
    if [str(size) for size in other] == [str(size) for size in old.args[0].ty.shape.values]:
        return op.add(product, op.reshape(value.args[1], product.ty.shape))
    if isinstance(value.args[1], GenericConst) and [int(size) for size in other] == [1, int(shape[1] * shape[2]), 1, 1]:
        return op.add(product, relax.const(value.args[1].value.numpy().reshape(1, int(shape[1]), int(shape[2]), 1)))
    return None
