"""HTML elements. Every text is escaped, and characters that hide text are shown by their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup
from markupsafe import escape as escape_html

from moeparity.output.words import printable

EMPTY = Markup("")


def escaped(text: object) -> Markup:
    """A text as HTML, with its line breaks."""
    return Markup("<br>").join(escape_html(line) for line in printable(str(text)).split("\n"))


def tag(name: str, content: Iterable[Markup] | Markup | str = "", **attributes: object) -> Markup:
    """An element. `class_` is its class; `_` in attribute names stands for `-`; attributes that are None or False
    are left out.
    """
    written = [
        Markup(' {}="{}"').format(key.strip("_").replace("_", "-"), printable(str(value)))
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    inner = (
        escaped(content) if type(content) is str else EMPTY.join(content if not isinstance(content, str) else [content])
    )
    start = Markup("<{}{}>").format(Markup(name), EMPTY.join(written))  # noqa: S704
    return start + inner + Markup("</{}>").format(Markup(name))  # noqa: S704


def scrolled(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself if it is wider than the page, also by keyboard; `label` names it to screen
    readers.
    """
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label or "table")


def keys(words: Iterable[tuple[str, str]]) -> Markup:
    """A legend: what the looks of a figure mean, by the style sheet's name of each."""
    spans = [tag("span", text, class_=f"key k-{name}") for name, text in words]
    return tag("div", spans, class_="keys") if spans else EMPTY


def note(text: str) -> Markup:
    """A sentence below a figure."""
    return tag("p", text, class_="t-dim") if text else EMPTY
