"""A store costs next to nothing to import: a fully cached run is mostly this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USE = """
import sys
from pathlib import Path
from forge_pipeline.store import Store
{prelude}
with Store(Path(sys.argv[1]), {remote}) as store:
    store.get_or_build("ab" * 32, lambda: ({{"out": b"out"}}, {{}}))
print(*sorted(name.partition(".")[0] for name in sys.modules))
"""

PRELUDE = "from forge_pipeline.store.channel import Terms; from forge_pipeline.store.remote import Remote"


def _imported(folder: Path, remote: str) -> set[str]:
    script = USE.format(remote=remote, prelude="" if remote == "None" else PRELUDE)
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_store_without_a_remote_imports_the_standard_library_alone(tmp_path: Path) -> None:
    base = subprocess.run(
        [sys.executable, "-c", "import sys; print(*(name.partition('.')[0] for name in sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before = set(base.stdout.split())  # what the interpreter itself loads, such as hooks of editable installs
    assert _imported(tmp_path, "None") - before - sys.stdlib_module_names == {"forge_pipeline", "forge_runtime"}


def test_fsspec_is_left_to_the_process_that_talks_to_the_remote(tmp_path: Path) -> None:
    remote = f"Remote(Terms(url='file://{tmp_path}/remote'), print)"
    assert "fsspec" not in _imported(tmp_path / "store", remote)
    assert list((tmp_path / "remote" / "actions").rglob("*"))
