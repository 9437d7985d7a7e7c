"""An importer that crashes, loops, hoards memory or reaches out is an error message; nothing of it is left."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import import_process
from forge_pipeline.frontends.contract import Limits

LIMITS = Limits(memory=1 << 29, seconds=60)


@pytest.fixture
def importer(tmp_path, monkeypatch):
    """Return a function that runs the body of a ``convert`` where importers run, and give the temporary folder."""
    code, temporary = tmp_path / "code", tmp_path / "temporary"
    code.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(import_process.tempfile, "tempdir", str(temporary))

    def run(body, limits=LIMITS):
        header = "from pathlib import Path\ndef convert(path, inputs):\n"
        (code / "stranger.py").write_text(header + textwrap.indent(textwrap.dedent(body), "    "))
        try:
            return import_process.import_apart("stranger", Path("model"), (), limits)
        finally:
            assert list(temporary.iterdir()) == []

    return run


def test_a_crash_names_the_signal(importer):
    with pytest.raises(ModelError, match=r"an importer that died \(SIGSEGV\)"):
        importer("import ctypes; ctypes.string_at(0)")


def test_an_exit_in_the_middle_is_no_success(importer):
    with pytest.raises(ModelError, match=r"an importer that died \(exit status 7\): told why"):
        importer("import os, sys; print('told why', file=sys.stderr, flush=True); os._exit(7)")


@pytest.mark.every(2)
@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(600)"])
def test_an_endless_loop_ends_at_the_limit(importer, body):
    with pytest.raises(ModelError, match="imported within 1 seconds, found an importer that was still running"):
        importer(body, Limits(memory=LIMITS.memory, seconds=1))


def test_what_an_importer_starts_ends_with_it(importer, tmp_path):
    mark = tmp_path / "pid"
    with pytest.raises(ModelError, match="still running"):
        importer(
            f"""
            import subprocess
            child = subprocess.Popen(["sleep", "600"])
            Path({str(mark)!r}).write_text(str(child.pid))
            child.wait()
            """,
            Limits(memory=LIMITS.memory, seconds=2),
        )
    status = Path("/proc", mark.read_text(), "stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the importer's own child is still there")


@pytest.mark.parametrize(
    "body",
    [
        "hoard = [bytearray(1 << 24) for _ in range(1000)]",
        "import numpy; numpy.ones(1 << 32)",
        "raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried to allocate 1 bytes')",
    ],
)
def test_hoarding_memory_is_refused_by_its_limit(importer, body):
    with pytest.raises(ModelError, match="imported within 512 MiB of memory, found an importer that asked for more"):
        importer(body)


def test_a_file_may_not_outgrow_the_limit(importer):
    with pytest.raises(ModelError, match=r"OSError|SIGXFSZ"):
        importer("open('large', 'wb').truncate(1 << 40)")


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK"])
def test_there_is_no_network(importer, family):
    with pytest.raises(ModelError, match="PermissionError"):
        importer(f"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)")


def test_the_environment_holds_no_secret(importer, monkeypatch):
    monkeypatch.setenv("FORGE_PASSWORD", "hunter2")
    with pytest.raises(ModelError, match="found LookupError: none"):
        importer("import os\nraise LookupError('hunter2' if 'hunter2' in str(os.environ) else 'none')")


def test_an_error_of_the_importer_is_told_in_one_printable_line(importer):
    with pytest.raises(ModelError) as refusal:
        importer("raise ValueError('\\x1b[31mbad\\x07\\nmodel ' + 'x' * 100000)")
    assert refusal.value.found.startswith("ValueError: bad\N{REPLACEMENT CHARACTER} model xxx")
    assert len(refusal.value.found) <= 1000


def test_a_refusal_arrives_as_it_was_raised(importer):
    with pytest.raises(ModelError) as refusal:
        importer("from forge_pipeline.errors import ModelError\nraise ModelError('a', 'b', 'c', 'd')")
    assert refusal.value.args == ("a", "b", "c", "d")
