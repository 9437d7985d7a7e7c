"""A store costs next to nothing to import: a fully cached run is mostly this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USE = """
import sys
from pathlib import Path
from forge_pipeline.store import Store
with Store(Path(sys.argv[1]), {remote}) as store:
    store.get_or_build("ab" * 32, lambda: ({{"out": b"out"}}, {{}}))
print(*sorted(name.partition(".")[0] for name in sys.modules))
"""


def _imported(folder: Path, remote: str) -> set[str]:
    script = USE.format(remote=remote)
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_store_without_a_remote_imports_the_standard_library_alone(tmp_path: Path) -> None:
    base = subprocess.run(
        [sys.executable, "-c", "import sys; print(*(name.partition('.')[0] for name in sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before = set(base.stdout.split())  # what the interpreter itself loads, such as hooks of editable installs
    assert _imported(tmp_path, "None") - before - sys.stdlib_module_names == {"forge_pipeline"}


def test_fsspec_is_imported_once_a_remote_is_configured(tmp_path: Path) -> None:
    assert "fsspec" in _imported(tmp_path / "store", repr(f"file://{tmp_path}/remote"))
