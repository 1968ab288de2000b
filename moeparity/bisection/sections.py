"""The sections of a report, as they are shown: the one list of them, in the order of the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moeparity.bisection.arrival import show as arrival
from moeparity.bisection.data import ReportData
from moeparity.bisection.degeneracy import show as degeneracy
from moeparity.bisection.determinism import show as determinism
from moeparity.bisection.divergence import show as divergence
from moeparity.bisection.envelope import show as envelope
from moeparity.bisection.flips import show as flips
from moeparity.bisection.floor import show as floor
from moeparity.bisection.graph import show as graph
from moeparity.bisection.nearest import show as nearest
from moeparity.bisection.nonfinite import show as nonfinite
from moeparity.bisection.oracle import show as oracle
from moeparity.bisection.per_token import show as per_token
from moeparity.bisection.provenance import show as provenance
from moeparity.bisection.real_ranks import show as real_ranks
from moeparity.bisection.record import show as record
from moeparity.bisection.replay import show as replay
from moeparity.bisection.rewards import show as rewards
from moeparity.bisection.run import show as run
from moeparity.bisection.schedule import show as schedule
from moeparity.bisection.shares import show as shares
from moeparity.bisection.spikes import show as spikes
from moeparity.bisection.summary import show as summary
from moeparity.bisection.toggles import show as toggles
from moeparity.bisection.tokens import show as tokens
from moeparity.bisection.trace import show as trace
from moeparity.bisection.updates import show as updates
from moeparity.bisection.verdict import show as verdict
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.output.blocks import Block, Document, Figure, Group, Lines, Question
from moeparity.output.terminal import print_blocks

if TYPE_CHECKING:
    from rich.console import Console

ANSWER = Question(key="answer", short="Answer", title="The answer")
GRAPH = Question(key="graph", short="Op graph", title="What did each node run?")
RECORD = Question(key="record", short="Record", title="Is the record reproduced?")
BLAME = Question(key="blame", short="Blame", title="Who makes the divergence?")
GROWTH = Question(key="growth", short="Start and growth", title="Where does it start, and how does it grow?")
NOISE = Question(key="noise", short="Noise", title="How much of it is noise?")
FLIPS = Question(key="flips", short="Flips", title="Which tokens take another route?")
TOKENS = Question(
    key="tokens",
    short="Tokens",
    title="Which tokens pay for it?",
    absent="No token has another log-probability on the two sides.",
)
FIXES = Question(key="fixes", short="Fixes", title="What would fix it, and at what price?")
NO_EFFECT = Question(
    key="no-effect",
    short="No effect",
    title="What had no effect?",
    absent="Every choice that was tried changed some bit.",
)
MADE_WITH = Question(key="made-with", short="Made with", title="What was this made with?")
QUESTIONS: Final = (ANSWER, GRAPH, RECORD, BLAME, GROWTH, NOISE, FLIPS, TOKENS, FIXES, NO_EFFECT, MADE_WITH)
"""The questions of the page, in their order."""


@dataclass(frozen=True, slots=True)
class Section:
    """How one part of a report is shown.

    question: under which question of the page it stands. asked_for: the name by which a terminal prints it on request,
    "" if it always does; holds: the line that stands in its place otherwise. on_page: it is on the page only.
    """

    show: Callable[[ReportData], Iterable[Block]]
    question: Question
    asked_for: str = ""
    holds: str = ""
    on_page: bool = False


SECTIONS: Final = (
    Section(summary.show, ANSWER),
    Section(run.show, MADE_WITH),
    Section(record.show, RECORD, "record", "what was recorded, beside what each side computes"),
    Section(record.show_other, RECORD, "record", "what the engine that did not sample recorded"),
    Section(tokens.show_warnings, ANSWER),
    Section(degeneracy.show, ANSWER),
    Section(determinism.show, ANSWER),
    Section(verdict.show, ANSWER, "metrics", "k1, k2, k3, KL both ways, |delta log p|, top-1 agreement"),
    Section(rewards.show, ANSWER),
    Section(nonfinite.show, ANSWER),
    Section(divergence.starts, GROWTH, "starts", "the roots: choices with value, flag, file and line"),
    Section(divergence.growth, GROWTH, "growth", "the carried error after each layer, and the local one"),
    Section(trace.show, BLAME),
    Section(updates.show, BLAME),
    Section(flips.show, FLIPS, "flips", "routing flips of each layer, their margins and their cost"),
    Section(replay.show, FLIPS, "replay", "the candidate with the reference's routes forced"),
    Section(per_token.show_log_probs, TOKENS, on_page=True),
    Section(per_token.show, TOKENS, on_page=True),
    Section(graph.show, GRAPH, on_page=True),
    Section(envelope.show, NOISE, "envelope", "what legal orders of the same sums give at each node"),
    Section(arrival.show, NOISE, "arrival", "how far the draws of an order of arrival lie apart"),
    Section(spikes.show, NOISE, "spikes", "tokens that jump from draw to draw, and why"),
    Section(floor.show, NOISE, "floor", "the reference against itself, reordered"),
    Section(schedule.show, NOISE),
    Section(real_ranks.show, NOISE),
    Section(oracle.show, NOISE, "oracle", "which side is nearer to the fp64 run"),
    Section(toggles.show_left_out, BLAME),
    Section(toggles.show, BLAME, "toggles", "every choice that differs, alone and restored"),
    Section(nearest.show, BLAME, "nearest", "known choices with the bits of a user's function"),
    Section(shares.show, BLAME, "shares", "the KL shared out among the toggles; smallest fixes"),
    Section(shares.show_fixes, FIXES, "shares"),
    Section(toggles.show_swaps, BLAME, "swaps", "whole blocks restored to the reference"),
    Section(toggles.show_words, BLAME, "words", "what the trials say in sentences; all flags"),
    Section(toggles.show_no_effect, NO_EFFECT, on_page=True),
    Section(record.show_recorded, RECORD, "record", "log-probabilities and routes of each side against it"),
    Section(tokens.show_classes, TOKENS, "classes", "k3, |delta| and flips by class of token"),
    Section(provenance.show, MADE_WITH, on_page=True),
    Section(run.show_cost, MADE_WITH, "cost", "work done and spared, bytes read, seconds, memory"),
)
"""All sections, in the order of the screen."""
ON_REQUEST: Final = tuple(dict.fromkeys(section.asked_for for section in SECTIONS if section.asked_for))
"""The names by which long sections are asked for, in the order of the screen."""


def document(report: ReportData) -> Document:
    """The report as a page: every section, with its figures."""
    return Document(
        command="bisect",
        subject=report.run.recipe,
        blocks=tuple(block for section in SECTIONS for block in _stamped(section, report)),
        questions=tuple(_absent(question, report) for question in QUESTIONS),
    )


def screen(report: ReportData, asked_for: Sequence[str]) -> Iterator[Block]:
    """The blocks of a report that a terminal shows; `asked_for` adds sections by name, or a line where one is empty."""
    shown = [block for section in SECTIONS if not section.on_page for block in _stamped(section, report)]
    yield from shown
    present = {block.asked_for for block in shown if isinstance(block, Group) and _has_words(block)}
    # If all sections are asked for, an absent one is not missed.
    for name in () if set(asked_for) == set(ON_REQUEST) else dict.fromkeys(asked_for):
        if name not in present:
            yield Lines((f"\n--section {name}: nothing; the recipe does not ask for it, or there is nothing to tell.",))


def asked_for(names: Sequence[str], *, all_of_them: bool) -> Sequence[str]:
    """The names of the sections that a user asks for. Raises MoeparityError for a name that no section has."""
    for name in names:
        if name not in ON_REQUEST:
            raise MoeparityError(
                f"--section {name}: there is no such section; expected one of {listed(ON_REQUEST)}."
                f"{did_you_mean(name, ON_REQUEST)}"
            )
    return ON_REQUEST if all_of_them else tuple(names)


def _stamped(section: Section, report: ReportData) -> Iterator[Block]:
    for block in section.show(report):
        if isinstance(block, Group):
            yield replace(block, asked_for=section.asked_for, holds=section.holds, question=section.question.key)
        else:
            yield block


def _has_words(group: Group) -> bool:
    return any(not isinstance(block, Figure) for block in group.blocks)


def _absent(question: Question, report: ReportData) -> Question:
    """The question, with a sentence that stands there if the report has nothing for it."""
    if question is RECORD:
        return replace(question, absent=f"{report.summary.record[:1].upper()}{report.summary.record[1:]}.")
    if question is FLIPS:
        compared = "No token does." if report.flips is not None else "There is no router that both sides run."
        return replace(question, absent=compared)
    if question is FIXES and report.blame.fix is None:
        return replace(question, absent="Nothing that differs has to be restored.")
    if question is FIXES and report.attribution is not None:
        return replace(question, absent="No fix is known: see `In words` above.")
    if question is FIXES:
        searched = "Not searched for (`attribute: true` in the recipe, or --attribute)."
        return replace(question, absent=f"{searched} To set: {report.summary.to_set}")
    return question


def print_report(report: ReportData, out: Console, asked_for: Sequence[str] = ()) -> None:
    """Print a report: its seven lines (again at the end), all short sections, and the long ones in `asked_for`; each
    other long section is mentioned in one line.
    """
    print_blocks(screen(report, asked_for), out, asked_for)
