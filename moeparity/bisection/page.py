"""A Report as a page: the words of the terminal and pictures, in the order of the questions that people ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeparity.bisection.report import Report
from moeparity.bisection.sections import modules
from moeparity.output.html.markup import markup
from moeparity.output.html.page import Block, Page, PageSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A section of the page: its anchor, its name in the contents, the question, and the parts that answer it."""

    key: str
    short: str
    title: str
    parts: tuple[str, ...]


QUESTIONS = (
    Question(
        key="answer",
        short="Answer",
        title="The answer",
        parts=("summary", "warnings", "degeneracy", "not_deterministic", "nonfinite", "verdict"),
    ),
    Question(key="record", short="Record", title="Is the record reproduced?", parts=("record", "recorded")),
    Question(
        key="blame",
        short="Blame",
        title="Who makes the divergence?",
        parts=("attribution", "toggles", "trace", "reading", "swaps", "nearest"),
    ),
    Question(
        key="growth",
        short="Start and growth",
        title="Where does it start, and how does it grow?",
        parts=("roots", "growth"),
    ),
    Question(
        key="noise",
        short="Noise",
        title="How much of it is noise?",
        parts=("floor", "oracle", "envelope", "arrival", "schedule", "real_ranks"),
    ),
    Question(key="flips", short="Flips", title="Which tokens take another route?", parts=("flips", "replay")),
    Question(key="tokens", short="Tokens", title="Which tokens pay for it?", parts=("per_token", "classes")),
    Question(key="graph", short="Op graph", title="What did each node run?", parts=("graph",)),
    Question(key="fixes", short="Fixes", title="What would fix it, and at what price?", parts=("fixes",)),
    Question(key="no-effect", short="No effect", title="What had no effect?", parts=("no_effect",)),
    Question(key="made-with", short="Made with", title="What was this made with?", parts=("run", "provenance", "cost")),
)
"""The sections of the page in their order."""


def page(report: Report) -> Page:
    """The page of a bisection."""
    return Page(
        command="bisect",
        subject=report.run.recipe,
        state=report.verdict.status,
        sections=list(_sections(report)),
    )


def flip_pictures(report: Report | None) -> PageSection | None:
    """The flip map and the tokens under it, for a page that says its words elsewhere; None without a report."""
    if report is None:
        return None
    blocks = [block for part in ("flips", "per_token") for block in _figures(part, report)]
    return PageSection(key="map", short="Flip map", title="Where routes flip", blocks=blocks) if blocks else None


def _sections(report: Report) -> Iterator[PageSection]:
    for question in QUESTIONS:
        blocks = [block for part in question.parts for block in _blocks(part, report)]
        absent = "" if blocks else _absent(question.key, report)
        if absent:
            blocks = [Block(title="", body=markup(absent))]
        if blocks:
            yield PageSection(key=question.key, short=question.short, title=question.title, blocks=blocks)


def _absent(question: str, report: Report) -> str:
    """What a section says where the report has nothing for it; others are left out."""
    if question == "fixes" and report.attribution is not None:
        return "No fix is known: see `In words` above."
    return {
        "record": f"record: {report.summary.record}",
        "fixes": f"Not searched for (`attribute: true` in the recipe, or --attribute). To set: {report.summary.to_set}",
        "no-effect": "No choice was seen to change no bit.",
        "flips": "No route was compared.",
    }.get(question, "")


def _blocks(part: str, report: Report) -> Iterator[Block]:
    """The pictures of a part, then its words."""
    yield from _figures(part, report)
    for shown in _of("text", "SHOWN", part):
        for title, body in shown(report):
            yield Block(title=title, body=markup(body, title))


def _figures(part: str, report: Report) -> Iterator[Block]:
    for figures in _of("page", "FIGURES", part):
        yield from figures(report)


def _of(kind: Any, table: str, part: str) -> Iterator[Any]:
    """What the sections have for a part."""
    for module in modules(kind).values():
        entries: Mapping[str, Any] = getattr(module, table)
        if part in entries:
            yield entries[part]
