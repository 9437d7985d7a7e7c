"""Hides the secrets of URLs in text that is shown or written down: one rule, in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
SHORTEST = 4  # characters; less than that is in any text, and hides nothing
# Repetitions are bounded, so that the time grows with the length of the text alone.
# Greedy: a password may hold "@", and one with "/" in it is none that a URL may have, but people write it.
_USERINFO = re.compile(r"(?<=://)(?:[^\s/]{0,1024}@|[^\s/@:]{0,256}:(?!\d+/)[^\s@]{0,256}@)")
# All of a query: which of its values are keys, only its server knows.
_QUERY = re.compile(r"(://[^\s?#]{0,1024})[?#](?!\*\*\*)\S+")
_VALUE = re.compile(  # of what is left of a URL, such as "GET /bucket/file?X-Amz-Signature=..."
    r"""([?&;#][\w.%-]{0,64}(?:token|sig|secret|key|pass|pwd|auth|credential|code)[\w.%-]{0,64}=)[^\s&;"'<>]+""",
    re.IGNORECASE,
)


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """Return ``text`` with ``***`` for the user and password, and for the query, of every URL in it.

    Values in a query without its URL are hidden where their name says that they are secret, and what is ``known``
    (from `secrets_of`) wherever it stands.
    """
    text = _USERINFO.sub(f"{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1?{HIDDEN}", text)
    text = _VALUE.sub(rf"\g<1>{HIDDEN}", text)
    for secret in known:
        text = text.replace(secret, HIDDEN)
    return text


def secrets_of(url: str) -> tuple[str, ...]:
    """Return the pieces of ``url`` that are hidden, the longest first: others quote them without the rest."""
    from urllib.parse import unquote

    found = {match[0][:-1].partition(":")[2] or match[0][:-1] for match in _USERINFO.finditer(url)}
    if match := _QUERY.search(url):
        query = match[0][len(match[1]) + 1 :]
        found |= {query, *(part.partition("=")[2] for part in query.split("&"))}
    found |= {unquote(secret) for secret in found}
    return tuple(sorted((secret for secret in found if len(secret) >= SHORTEST), key=len, reverse=True))
