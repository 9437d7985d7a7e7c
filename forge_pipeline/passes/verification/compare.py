"""How two sets of outputs differ: bit by bit, within a tolerance, or by a metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.passes.contract import Tolerance

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where one output is farthest from what it should be, and by how much.

    ``share`` is the largest error in units of what is allowed: above 1 it is too large. ``max_rel`` is relative to
    the element itself.
    """

    output: str
    share: float
    max_abs: float
    max_rel: float
    at: tuple[int, ...]
    note: str

    @property
    def failed(self) -> bool:
        """Whether it is more than is allowed."""
        return not self.share <= 1.0

    def __str__(self) -> str:
        return f"{self.output!r} {self.note}"


def bitwise(name: str, want: Any, got: Any) -> Difference:
    """Compare bit by bit; any NaN equals any NaN."""
    wrong_type = _other_type(name, want, got)
    if wrong_type:
        return wrong_type
    if not isinstance(want, np.ndarray):
        same = repr(want) == repr(got)
        return _plain(name, same, "holds another value")
    if want.dtype == object:
        return _plain(name, bool((want == got).all()), "holds other strings")
    unequal = np.asarray(_bits(want) != _bits(got))
    if want.dtype.kind == "f" or want.dtype.name == "bfloat16":
        unequal &= ~(np.isnan(want) & np.isnan(got))
    if not unequal.any():
        return Difference(output=name, share=0.0, max_abs=0.0, max_rel=0.0, at=(), note="is equal")
    at = _index(unequal.argmax(), want)
    return _described(name, want, got, at, share=np.inf)


def close(name: str, want: Any, got: Any, allowed: Tolerance, noise: float = 0.0) -> Difference:
    """Compare within ``allowed``, whose numbers must be set, and ``noise``; see Tolerance for what they mean."""
    wrong_type = _other_type(name, want, got)
    if wrong_type:
        return wrong_type
    if not isinstance(want, np.ndarray) or want.dtype.kind not in "f":
        return bitwise(name, want, got)
    rtol, atol = allowed.rtol or 0.0, allowed.atol or 0.0
    wide, found = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide)
    scale = float(np.abs(wide[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.abs(found - wide))  # of scalars numpy makes no array by itself
    error[np.isnan(wide) & np.isnan(found)] = 0.0
    error[wide == found] = 0.0
    error[np.isnan(error)] = np.inf
    if not error.size:
        return Difference(output=name, share=0.0, max_abs=0.0, max_rel=0.0, at=(), note="is empty")
    at = _index(error.argmax(), want)
    limit = atol + rtol * scale + noise
    worst = float(error.max())
    share = 0.0 if worst == 0 else worst / limit if limit else np.inf
    return _described(name, want, got, at, share=share)


def _described(name: str, want: Array, got: Array, at: tuple[int, ...], *, share: float) -> Difference:
    if want.dtype.kind in "fiub":
        wide, found = want.astype(np.float64), got.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            error = np.asarray(np.abs(found - wide))
            error[(wide == found) | (np.isnan(wide) & np.isnan(found))] = 0.0
            relative = np.where(error == 0, 0.0, error / np.abs(wide))
        max_abs, max_rel = float(error.max(initial=0.0)), float(relative.max(initial=0.0))
    else:
        max_abs = max_rel = float("inf")
    place = list(at)
    note = f"differs by {max_abs:.3g} at {place}: {want[at]!s} became {got[at]!s}"
    return Difference(output=name, share=share, max_abs=max_abs, max_rel=max_rel, at=at, note=note)


def _plain(name: str, same: bool, note: str) -> Difference:
    worst = 0.0 if same else float("inf")
    return Difference(output=name, share=worst, max_abs=worst, max_rel=worst, at=(), note="is equal" if same else note)


def _other_type(name: str, want: Any, got: Any) -> Difference | None:
    infinite = float("inf")
    if type(want) is not type(got):
        note = f"is a {type(got).__name__} and not a {type(want).__name__}"
    elif isinstance(want, np.ndarray) and (want.dtype != got.dtype or want.shape != got.shape):
        note = f"is {got.dtype}{list(got.shape)} and not {want.dtype}{list(want.shape)}"
    else:
        return None
    return Difference(output=name, share=infinite, max_abs=infinite, max_rel=infinite, at=(), note=note)


def _bits(array: Array) -> Array:
    if array.dtype == bool or array.dtype.kind in "iu":
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _index(flat: Any, array: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(flat), array.shape))


MetricFunction = Callable[[Sequence[Array], Sequence[Array]], float]


def sqnr_db(want: Sequence[Array], got: Sequence[Array]) -> float:
    """Signal to quantization noise ratio over all outputs, in dB; infinity where they are equal."""
    signal = sum(float(np.square(a.astype(np.float64)).sum()) for a in want)
    noise = sum(
        float(np.square(a.astype(np.float64) - b.astype(np.float64)).sum()) for a, b in zip(want, got, strict=True)
    )
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal else float("-inf")


def max_abs(want: Sequence[Array], got: Sequence[Array]) -> float:
    """Return the largest absolute difference of any element."""
    errors = (np.abs(a.astype(np.float64) - b.astype(np.float64)) for a, b in zip(want, got, strict=True))
    return max((float(error.max(initial=0.0)) for error in errors), default=0.0)


def cosine(want: Sequence[Array], got: Sequence[Array]) -> float:
    """Return the cosine of the angle between the outputs, all of them as one vector."""
    a = np.concatenate([x.astype(np.float64).reshape(-1) for x in want])
    b = np.concatenate([x.astype(np.float64).reshape(-1) for x in got])
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else float(np.array_equal(a, b))


def top1_agreement(want: Sequence[Array], got: Sequence[Array]) -> float:
    """Return the share of rows of the first output whose largest entry (or label) is the wanted one."""
    labels = want[0] if want[0].ndim < 2 or want[0].shape[-1] == 1 else want[0].argmax(-1)
    return float(np.mean(labels.reshape(-1) == got[0].argmax(-1).reshape(-1)))


METRICS: dict[str, MetricFunction] = {
    "sqnr-db": sqnr_db,
    "max-abs": max_abs,
    "cosine": cosine,
    "top1": top1_agreement,
}
