"""How a run of passes is verified: the values of the ``verify`` section."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """``conf/fold/*.yaml``, section ``verify``.

    ``rtol`` and ``atol`` bound what a pass may change that does not state its own (see contract.Tolerance);
    ``samples`` inputs are generated from ``seed``; ``dims`` gives symbolic dimensions a size by name, the others
    are bound to small ones.
    """

    rtol: float
    atol: float
    samples: int
    seed: int
    dims: dict[str, int]
