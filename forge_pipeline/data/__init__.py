"""Data for calibration and evaluation: opened by path, known by content, fitted to a model's inputs.

A `Dataset` is content alone; how it is split, scaled and shaped is `Preparation`, so that both are in an action key
and no path is. Importing this package does not import NumPy.
"""

from __future__ import annotations

from forge_pipeline.data.dataset import Dataset, Feed, Samples
from forge_pipeline.data.preparation import Image, Preparation

__all__ = ["Dataset", "Feed", "Image", "Preparation", "Samples"]
