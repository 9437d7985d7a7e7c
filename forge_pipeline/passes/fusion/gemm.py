"""Matrix products: a bias, a transposition or a factor beside them becomes part of a Gemm."""

from __future__ import annotations

from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op, set_attribute


@verified(Tolerance())
class FuseGemm(Transformation[NoOptions]):
    """MatMul of two matrices + Add -> Gemm; a Transpose before a Gemm or such a MatMul -> transA, transB.

    From operator set 7 on, where Gemm broadcasts its bias to the product, but not the product to its bias.
    """

    def call(self, graph: Graph) -> int:
        """Bias first: it decides whether a MatMul becomes a Gemm."""
        if graph.opset() < 7:
            return 0
        changes = sum(_bias(graph, node) for node in graph.nodes if is_op(node, "Add"))
        changes += sum(_transposed(graph, node) for node in graph.nodes if is_op(node, "Gemm", "MatMul"))
        return changes


def _bias(graph: Graph, add: NodeProto) -> bool:
    for operand in (0, 1):
        product, bias = graph.producer(add.input[operand]), add.input[1 - operand]
        if product is None or product.op_type not in ("MatMul", "Gemm"):
            continue
        if product.domain not in ("", "ai.onnx") or graph.only_user(product.output[0]) is None:
            continue
        if (len(product.input) > 2 and product.input[2]) or not _is_matrix_product(graph, product):
            continue
        if not _broadcasts(graph.shape(bias), graph.shape(product.output[0])):
            continue
        inputs = [*product.input[:2], bias]
        kept = {entry.name: attribute(product, entry.name) for entry in product.attribute if entry.name != "beta"}
        graph.remove(product)
        graph.replace(add, "Gemm", inputs, **kept)
        return True
    return False


def _is_matrix_product(graph: Graph, node: NodeProto) -> bool:
    floats = (1, 10, 11, 16)
    return all(graph.rank(name) == 2 for name in node.input[:2]) and graph.elem_type(node.input[0]) in floats


def _broadcasts(bias: tuple[int | str | None, ...] | None, product: tuple[int | str | None, ...] | None) -> bool:
    """Whether a bias can be broadcast to the product, one way only."""
    if bias is None or product is None or len(bias) > len(product):
        return False
    tail = product[len(product) - len(bias) :]
    return all(size == 1 or (size is not None and size == dim) for size, dim in zip(bias, tail, strict=True))


def _transposed(graph: Graph, node: NodeProto) -> bool:
    if not _is_matrix_product(graph, node):
        return False
    changed = False
    for index, flag in enumerate(("transA", "transB")):
        maker = graph.producer(node.input[index])
        if not is_op(maker, "Transpose") or maker is None or attribute(maker, "perm", [1, 0]) != [1, 0]:
            continue
        graph.set_input(node, index, maker.input[0])
        node.op_type = "Gemm"
        set_attribute(node, flag, 1 - attribute(node, flag, 0))
        changed = True
    return changed
