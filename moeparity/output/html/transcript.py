"""What a command prints, taken down as a page: every command that prints a report has one."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup
from rich.text import Text

from moeparity.output.html.markup import markup
from moeparity.output.html.page import Block, Page, PageSection
from moeparity.output.status import State

_WIDE = 10_000


class Transcript:
    """Takes what a console prints. A bold text on a line of its own begins a section; the last line, which repeats the
    first, is left out.
    """

    width = _WIDE

    def __init__(self) -> None:
        self._parts: list[tuple[str, list[Any]]] = [("", [])]

    def print(self, *objects: Any, **_: Any) -> None:
        """Take down what would be printed."""
        for item in objects:
            if isinstance(item, Text) and item.plain.startswith("\n") and str(item.style) == "bold":
                self._parts.append((item.plain.strip(), []))
            else:
                self._parts[-1][1].append(item)

    def page(self, command: str, subject: str, state: State, pictures: PageSection | None = None) -> Page:
        """The page of what was taken down; `pictures` stand behind the answer."""
        (_, opening), *others = self._parts
        first, *beside = opening
        # The line that a report opens with closes it too, for those who see the end of a screen.
        sections = [_section("answer", "The answer", [first, *(item for item in beside if item is not first)])]
        sections += [] if pictures is None else [pictures]
        for title, items in others:
            sections.append(_section(_anchor(title), title, [item for item in items if item is not first]))
        return Page(command=command, subject=subject, state=state, sections=sections)


def _section(key: str, title: str, items: list[Any]) -> PageSection:
    body = Markup("").join(markup(item, title) for item in items)
    return PageSection(key=key, short=title, title=title, blocks=[Block(title="", body=body)])


def _anchor(title: str) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
