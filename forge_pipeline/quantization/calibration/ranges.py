"""Ranges: what calibration knows about a model's activations, as an artifact that one can look at and merge.

It holds counts, extrema, sums and histograms, and never a sample: it is kept, and sent to where others read it.

Stored as an .npz that `numpy.load` opens: no pickle, no clock, so that equal statistics are equal bytes.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ArtifactError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.quantization.calibration.statistics import Statistics

FORMAT = 2
ARRAYS = ("name", "count", "low", "high", "low_sum", "high_sum", "exponent", "histogram")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Mapping[str, "Statistics"]):
    """Statistics by tensor name, for the model with this ``fingerprint``."""

    fingerprint: str
    tensors: Mapping[str, Statistics] = field(repr=False)

    def __getitem__(self, name: str) -> Statistics:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def samples(self) -> int:
        """The number of samples seen."""
        return max((statistics.count for statistics in self.tensors.values()), default=0)

    def merge(self, other: Ranges) -> Ranges:
        """Return the ranges over both sets of samples. Raises ArtifactError when they are of different models."""
        if (self.fingerprint, self.tensors.keys()) != (other.fingerprint, other.tensors.keys()):
            raise ArtifactError(
                where="ranges to merge",
                expected=f"ranges of the same model and options, {self.fingerprint[:16]}",
                found=f"others, {other.fingerprint[:16]}",
                fix="calibrate every shard on the same model, with the same configuration",
            )
        merged = {name: statistics.merge(other.tensors[name]) for name, statistics in self.tensors.items()}
        return Ranges(fingerprint=self.fingerprint, tensors=merged)

    def to_bytes(self) -> bytes:
        """Serialise; equal ranges give equal bytes."""
        import numpy as np

        names = sorted(self.tensors)
        rows = [self.tensors[name] for name in names]
        arrays: dict[str, NDArray[Any]] = {
            "format": np.array(json.dumps({"format": FORMAT, "fingerprint": self.fingerprint}, sort_keys=True)),
            "name": np.array(names, dtype=np.str_),
            "histogram": np.stack([row.histogram for row in rows]) if rows else np.zeros((0, 0), np.int64),
        }
        for column in ("count", "exponent"):
            arrays[column] = np.array([getattr(row, column) for row in rows], np.int64)
        for column in ("low", "high"):
            arrays[column] = np.array([getattr(row, column) for row in rows], np.float32)
        for column in ("low_sum", "high_sum"):  # integers of any length
            arrays[column] = np.array([str(getattr(row, column)) for row in rows], dtype=np.str_)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for name, array in sorted(arrays.items()):
                member = io.BytesIO()
                np.lib.format.write_array(member, array, allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())  # dated 1980
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Ranges:
        """Read what `to_bytes` wrote. Raises ArtifactError for anything else."""
        import numpy as np

        from forge_pipeline.quantization.calibration.statistics import BINS, Statistics

        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                header = json.loads(str(archive["format"]))
                if header["format"] != FORMAT:
                    raise _damaged(f"format {header['format']}")
                columns = {name: archive[name] for name in ARRAYS}
            count = len(columns["name"])
            lengths = {name: len(column) for name, column in columns.items()}
            if set(lengths.values()) != {count} or (count and columns["histogram"].shape[1] != BINS):
                raise _damaged(f"arrays of lengths {sorted(set(lengths.values()))}")
            tensors = {
                str(columns["name"][row]): Statistics(
                    count=int(columns["count"][row]),
                    low=float(columns["low"][row]),
                    high=float(columns["high"][row]),
                    low_sum=int(columns["low_sum"][row]),
                    high_sum=int(columns["high_sum"][row]),
                    exponent=int(columns["exponent"][row]),
                    histogram=columns["histogram"][row].astype(np.int64),
                )
                for row in range(count)
            }
            if any(not math.isfinite(row.low + row.high) or row.count < 1 for row in tensors.values()):
                raise _damaged("a range that is not finite")
            return cls(fingerprint=str(header["fingerprint"]), tensors=tensors)
        except (ValueError, KeyError, TypeError, IndexError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise _damaged(str(error)) from error


def _damaged(found: str) -> ArtifactError:
    return ArtifactError(
        where="ranges.npz",
        expected=f"calibrated ranges, format {FORMAT}",
        found=found,
        fix="run calibrate again",
    )
