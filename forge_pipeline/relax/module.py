"""RelaxModule: a module of TVM's graph representation with what people ask of it: looking, editing, running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm

from forge_pipeline.errors import ModelError
from forge_pipeline.relax import fold, tensorrt
from forge_pipeline.relax.batch_size import with_batch_size
from forge_pipeline.relax.reference import inference_function
from forge_pipeline.relax.view import RelaxView, checked

IRModule = Any  # tvm.IRModule: TVM's classes carry no types


class RelaxModule(RelaxView):
    """An extension of TVM's IRModule in Relax. Two are equal when they have the same structure, whatever their weights.

    ``params`` are the weights among the parameters of `main`, by name (or as ``relax.frontend.detach_params`` gives
    them). With ``fold_constants`` they become constants of the graph, and what depends on constants alone is computed;
    without, they stay parameters, which ``params`` lists. ``fold_batch_norms`` takes batch normalisations into the
    weights before them. ``inline_partitions`` first takes back what was partitioned. Raises ModelError for a module
    without a function `main` in Relax, and for weights that are not its parameters.
    """

    __slots__ = ()

    def __init__(
        self,
        mod: tvm.IRModule,
        params: Mapping[str, Any] | None = None,
        inline_partitions: bool = False,
        fold_constants: bool = True,
        fold_batch_norms: bool = True,
    ) -> None:
        self._mod = checked(mod)
        self._names = None
        self._weights = fold.checked_parameters(self._mod, params or {})
        if inline_partitions:
            self._mod = tensorrt.inlined(self._mod)
        if fold_constants or fold_batch_norms:
            self._freeze()
        if fold_batch_norms:
            self._mod = fold.folded_batch_norms(self._mod)
        if fold_constants:
            self._mod = fold.folded_constants(self._mod)

    def _freeze(self) -> None:
        self._mod, self._weights = fold.bound_parameters(self._mod, self._weights), {}

    def copy(self) -> RelaxModule:
        """Return a module of its own: what is changed in one is not changed in the other."""
        duplicate = type(self).__new__(type(self))
        self._copy_to(duplicate)
        return duplicate

    def _copy_to(self, other: RelaxModule) -> None:
        other._mod = self._mod.clone()
        other._names, other._weights = self._names, dict(self._weights)

    # --- changing --------------------------------------------------------------------------------------------------

    def set_batch_size(self, batch_size: int) -> None:
        """Fix the leading dimension of the inputs, in place. Raises ModelError where the module cannot follow."""
        self.replace(with_batch_size(self._mod, batch_size, self.input_count))

    @property
    def is_tensorrt(self) -> bool:
        """Whether the module is partitioned for TensorRT."""
        return any(str(self._mod[name].attrs["Codegen"]) == "tensorrt" for name in tensorrt.partitions(self._mod))

    def partition_for_tensorrt(
        self,
        remove_stacks: bool = True,
        simplify_batch_matmul: bool = True,
        simplify_scalar_add: bool = True,
        remove_no_mac_subgraphs: bool = True,
    ) -> None:
        """Move what TensorRT can compute into functions of their own, in place; ``inline_partitions`` undoes it.

        ``remove_stacks``: stack as expand_dims and concat. ``simplify_batch_matmul``: a batched product with one
        constant matrix as a product of two matrices. ``simplify_scalar_add``: an added scalar as a tensor with as many
        dimensions as what it is added to. ``remove_no_mac_subgraphs``: no partition without multiply-accumulates.
        """
        self._freeze()
        self.replace(
            tensorrt.partitioned(
                self._mod,
                remove_stacks=remove_stacks,
                simplify_batch_matmul=simplify_batch_matmul,
                simplify_scalar_add=simplify_scalar_add,
                remove_no_mac_subgraphs=remove_no_mac_subgraphs,
            )
        )

    def inline_partitions(self) -> None:
        """Put every partition back into `main`, in place."""
        self.replace(tensorrt.inlined(self._mod))

    # --- running ---------------------------------------------------------------------------------------------------

    def inference_function(self, target: Mapping[str, Any]) -> Callable[..., np.ndarray | list[np.ndarray]]:
        """Return ``f(input0, input1, ...)`` for TVM's description of a target; see ``relax_inference``."""
        order = [str(variable.name) for variable in self._mod["main"].params]
        weights = [self._weights[name] for name in order if name in self._weights]
        if order != [*self.input_names, *(name for name in order if name in self._weights)]:
            raise ModelError("main", "inputs before weights", ", ".join(order), "fold the weights: fold_constants=True")
        return inference_function(tensorrt.inlined(self._mod), self.input_names, weights, target)
