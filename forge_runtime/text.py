"""Text of others, made fit to be shown: a model's names, a record's fields and a file's name are a stranger's."""

from __future__ import annotations

from forge_runtime.redact import redacted

LIMIT = 1600
_LEAST = 80  # characters: below, there is no room to say how long the text was
_READ = 1 << 14  # characters of each end that are looked at: the time does not grow with the length


def shown(text: str, limit: int = LIMIT) -> str:
    """Return ``text`` as one printable line of at most ``limit`` characters, for a terminal, XML or HTML.

    What is not printable, and so a terminal or a reader of XML may obey or refuse, is written as Python writes it
    (``\\x1b``, ``\\n``, ``\\u202e``). A text that is too long loses its middle. Secrets of URLs are hidden.
    """
    ends = [_printable(redacted(end)) for end in _ends(text)]
    if len(ends) == 1 and len(ends[0]) <= limit:
        return ends[0]
    if limit < _LEAST:
        return ends[0][: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    mark = f" ... {len(text):,} characters ... "
    rest = limit - len(mark)
    return ends[0][: rest - rest // 2] + mark + ends[-1][max(0, len(ends[-1]) - rest // 2) :]


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _ends(text: str) -> tuple[str, ...]:
    """Cut what is far too long where no URL is cut in two: half of one would not be known for what it is."""
    if len(text) <= 2 * _READ:
        return (text,)
    start, end = text[:_READ], text[-_READ:]
    return start[: max(start.rfind(" "), start.find("://")) + 1 or _READ], end[end.find(" ") :] if " " in end else ""
