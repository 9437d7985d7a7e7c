"""From a URL and options to what is asked: which back end, which kind of files, and what it must not do by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from forge_pipeline.carrier.files import Files
from forge_pipeline.carrier.folders import Folders
from forge_pipeline.carrier.local import Folder
from forge_pipeline.carrier.objects import Objects
from forge_pipeline.carrier.web import Web

Options = Mapping[str, Any]
_S3_OPTIONS = {
    "config_kwargs": {
        "retries": {"total_max_attempts": 1},
        # Digests are checked here; servers other than Amazon's get the checksums that it would add wrong.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
}


def _open_url(url: str, options: Options) -> tuple[Any, str]:
    """Return the file system and the root in it."""
    from fsspec.core import url_to_fs

    files, root = url_to_fs(url, **options)
    if hasattr(files, "retries"):
        files.retries = 1  # whoever asks tries again, and knows for how long
    return files, str(root)


def _open_gs(url: str, options: Options) -> tuple[Any, str]:
    """Take gcsfs's first class: its other one asks by gRPC what a bucket is, for a minute where it cannot."""
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(**options), str(GCSFileSystem._strip_protocol(url))


def _open_webdav(url: str, options: Options) -> tuple[Any, str]:
    """WebDAV's back end wants the server and the credentials apart from the path."""
    from webdav4.fsspec import WebdavFileSystem

    parts = urlsplit(url)
    scheme = "https" if parts.scheme.endswith("s") else "http"
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    given = options.get("auth", auth)
    auth = tuple(given) if isinstance(given, list) else given
    server = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    client = {"retry": False, **{name: value for name, value in options.items() if name != "auth"}}
    return WebdavFileSystem(server, auth=auth, **client), unquote(parts.path)


def _open_sftp(url: str, options: Options) -> tuple[Any, str]:
    """Take sshfs, not fsspec's own, which believes any server; ``known_hosts``: the user's file, as `ssh` does."""
    from sshfs import SSHFileSystem

    known = options.get("known_hosts", ())
    parts = SSHFileSystem._get_kwargs_from_urls(url)
    return SSHFileSystem(**parts, **{**options, "known_hosts": known}), str(SSHFileSystem._strip_protocol(url))


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a remote is opened, with which options unless others are given, and which extra has its package."""

    kind: Callable[[Any, str], Files]
    opens: Callable[[str, Options], tuple[Any, str]] = _open_url
    options: Options | None = None
    module: str | None = None
    extra: str | None = None


_S3 = Protocol(kind=Objects, options=_S3_OPTIONS, module="s3fs", extra="s3")
_GS = Protocol(kind=Objects, opens=_open_gs, module="gcsfs", extra="gs")
_AZ = Protocol(kind=Objects, module="adlfs", extra="az")
_SFTP = Protocol(kind=Folders, opens=_open_sftp, module="sshfs", extra="sftp")
_WEBDAV = Protocol(kind=Folders, opens=_open_webdav, module="webdav4", extra="webdav")
_WEB = Protocol(kind=Web)
PROTOCOLS: Mapping[str, Protocol] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GS),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZ),
    **dict.fromkeys(("sftp", "ssh"), _SFTP),
    **dict.fromkeys(("webdav", "webdavs"), _WEBDAV),
    **dict.fromkeys(("http", "https"), _WEB),
    "memory": Protocol(kind=Objects),
}
OTHER = Protocol(kind=Folders)
"""Whatever else fsspec knows."""


def protocol_of(url: str) -> str:
    """Return a URL's protocol; that of a path is `file`."""
    return url.partition("://")[0] if "://" in url else "file"


def connect(url: str, options: Options) -> Files:
    """Return the files. Raises what the back end raises."""
    name = protocol_of(url)
    if name in ("file", "local"):
        from fsspec.implementations.local import LocalFileSystem

        return Folder(LocalFileSystem._strip_protocol(url))
    protocol = PROTOCOLS.get(name, OTHER)
    return protocol.kind(*protocol.opens(url, _merged(protocol.options or {}, options)))


def what_is_wrong(url: str) -> dict[str, Any] | None:
    """Return why a URL cannot be used here: no known protocol, or none whose package is installed."""
    from importlib import import_module

    from fsspec import get_filesystem_class
    from fsspec.registry import available_protocols

    known = {*available_protocols(), *PROTOCOLS}
    for name in protocol_of(url).split("::"):
        if name not in known:
            return {"protocol": name, "known": sorted(known)}
        protocol = PROTOCOLS.get(name, OTHER)
        try:
            if protocol.module is not None:
                import_module(protocol.module)
            else:
                get_filesystem_class(name)
        except (ImportError, AttributeError) as error:  # the latter of a back end that is retired
            return {"protocol": name, "missing": str(error), "extra": protocol.extra}
    return None


def _merged(defaults: Options, given: Options) -> dict[str, Any]:
    """Return the options, those that are given first, in nested mappings too."""
    both = {**defaults, **given}
    for name, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(given.get(name), Mapping):
            both[name] = _merged(value, given[name])
    return both
