"""keygen, sign and verify on a real delivery, and everything that somebody could change in it afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.conftest import Build, Forge
