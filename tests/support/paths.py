"""Where things are: this checkout, and models and data beside it, which are large and not part of it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
SUPPORT = ROOT / "tests/support"
"""Programs that tests start lie here, too."""
