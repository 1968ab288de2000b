"""A page of sections: one file with its style, its scripts and its data, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from moeparity.output.html.packing import script_data
from moeparity.output.status import State
from moeparity.output.words import printable

SCRIPTS = ("base.js", "plots.js", "growth.js", "series.js", "flipmap.js", "tokens.js", "graph.js", "start.js")
_STATIC = "moeparity.output.html"
_PLOTS = "uPlot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a section: a title of its own, or none, its body, and what the scripts draw in it."""

    title: str
    body: Markup
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A question and what answers it; `key` is its anchor, `short` what the list of contents calls it."""

    key: str
    short: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: the command that made it, what it was run on, the verdict, and sections."""

    command: str
    subject: str
    state: State
    sections: Sequence[PageSection]

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts draw, of all blocks."""
        blocks = (block for section in self.sections for block in section.blocks)
        return {name: part for block in blocks for name, part in block.data.items()}

    def to_html(self) -> str:
        """The whole file."""
        data = self.data
        scripts = _scripts(with_plots=bool(data))
        style = _text("page.css") + (_text(f"vendor/{_PLOTS}.min.css") if data else "")
        html: str = _template().render(
            page=self,
            title=f"{self.state.upper()}: {printable(self.subject)} ({self.command})",
            subject=printable(self.subject),
            style=Markup(style),  # noqa: S704  (our own files)
            scripts=Markup(scripts),  # noqa: S704
            data=script_data(data),
            version=version("moeparity"),
            policy="; ".join(
                (
                    "default-src 'none'",
                    f"script-src '{_hash(scripts)}'",
                    f"style-src '{_hash(style)}'",
                    "img-src data:",
                    "base-uri 'none'",
                    "form-action 'none'",
                )
            ),
        )
        return html


def _scripts(*, with_plots: bool) -> str:
    """The library and our own scripts, in a scope of their own; without pictures only what every page needs."""
    names = SCRIPTS if with_plots else (SCRIPTS[0], SCRIPTS[-1])
    library = [_text(f"vendor/{_PLOTS}.iife.min.js")] if with_plots else []
    page_script = "\n".join(_text(name) for name in names)
    return "\n".join([*library, f'(() => {{\n"use strict";\n{page_script}\n}})();'])


@cache
def _text(name: str) -> str:
    return resources.files(_STATIC).joinpath("static", name).read_text("utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html"))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
