"""Text for Markdown as GitHub and GitLab show it: nothing that files hold is a heading, link, mention, tag or table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeparity.output.words import printable

_SPECIAL = re.compile(r"[\\`*_\[\]#|~$]|^[-+](?=\s|$|-)|^=")
"""What Markdown reads within a line, and what it reads where a line begins."""
_NOTHING = "<!-- -->"
"""Stands between what would be taken together: a name behind `@`, a number behind `#`, an address."""
_TAKEN = re.compile(r"@|\\#|(?<=:)/|(?i:\bgh)(?=-)|(?i:\bwww)(?=\.)|^(?=[0-9]+[.)](?:\s|$))")


def escaped(text: str) -> str:
    """A text that is shown as it is, on one line."""
    one_line = " ".join(printable(text).split())
    plain = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = _SPECIAL.sub(lambda match: f"\\{match[0]}", plain)
    return _TAKEN.sub(lambda match: f"{match[0]}{_NOTHING}", marked)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts that are not yet escaped."""
    lines = [header, ["---"] * len(header), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def picture(says: str, file: str) -> str:
    """A picture that lies in a file beside the text."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda match: "".join(f"%{byte:02x}" for byte in match[0].encode()), file)
    return f"![{escaped(says)}]({name})"
