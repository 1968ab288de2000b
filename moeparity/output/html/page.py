"""A report as one HTML file with its style, scripts and data; it asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from moeparity.output.blocks import Block, Document, Figure, Group, Question
from moeparity.output.html.blocks import markup
from moeparity.output.html.figures import drawn
from moeparity.output.html.packing import script_data
from moeparity.output.html.tags import escaped, tag
from moeparity.output.status import headline
from moeparity.output.words import printable

SCRIPTS = ("base.js", "plots.js", "series.js", "flipmap.js", "tokens.js", "graph.js", "start.js")
_STATIC = "moeparity.output.html"
_PLOTS = "uPlot"
ANSWER = Question(key="answer", short="Answer", title="The answer")
"""The first section of a page that has no questions of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A question with its answer. Each part has a title, which may be empty."""

    question: Question
    parts: Sequence[tuple[str, Markup]]


def html(document: Document) -> str:
    """The HTML of the whole page."""
    status = document.status
    data: dict[str, Any] = {}
    sections = list(_sections(document, data))
    scripts = _scripts(with_plots=bool(data))
    style = _text("page.css") + (_text(f"vendor/{_PLOTS}.min.css") if data else "")
    page: str = _template().render(
        command=document.command,
        state=status.state,
        headline=headline(status.state, status.but),
        sections=sections,
        title=f"{headline(status.state, status.but)}: {printable(document.subject)} ({document.command})",
        subject=printable(document.subject),
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
    return page


def _sections(document: Document, data: dict[str, Any]) -> Iterator[Section]:
    """The sections in the order of the document's questions, then groups without a question. Data for scripts goes into
    `data`.
    """
    opening = [block for block in document.blocks if not isinstance(block, Group) or not block.title]
    groups = [block for block in document.blocks if isinstance(block, Group) and block.title]
    for question in document.questions or (ANSWER,):
        answers = [group for group in groups if group.question == question.key]
        parts = [("", part) for part in _parts(opening, data)] if question.key == ANSWER.key else []
        parts += [(group.title, part) for group in answers for part in _joined(group, data)]
        if not parts and question.absent:
            parts = [("", tag("p", escaped(question.absent)))]
        if parts:
            yield Section(question=question, parts=parts)
    for group in groups:
        parts = [] if group.question else [("", part) for part in _joined(group, data)]
        if parts:
            question = Question(key=_anchor(group.title), short=group.title, title=group.title)
            yield Section(question=question, parts=parts)


def _joined(group: Group, data: dict[str, Any]) -> Iterator[Markup]:
    body = Markup("").join(_parts(group.blocks, data, group.title))
    if body:
        yield body


def _parts(blocks: Sequence[Block], data: dict[str, Any], label: str = "") -> Iterator[Markup]:
    for block in blocks:
        if isinstance(block, Figure):
            title = tag("h4", block.title) if block.title and block.title != label else Markup("")
            body, figure_data = drawn(block)
            data.update(figure_data)
            yield title + body
        elif isinstance(block, Group):
            title = tag("h4", block.title) if block.title else Markup("")
            yield title + Markup("").join(_parts(block.blocks, data, block.title or label))
        else:
            yield markup(block, label)


def _anchor(title: str) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _scripts(*, with_plots: bool) -> str:
    """The scripts in a scope of their own; without plots only what every page needs."""
    names = SCRIPTS if with_plots else (SCRIPTS[0], *SCRIPTS[-2:])
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
