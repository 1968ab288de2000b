"""An examination as shown: the answer, what it rests on, what was tried, what would tell more."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.doctor.report import BEYOND, Answer, Examination, Explanation
from moeparity.errors import counted
from moeparity.metrics.verdict import Interval
from moeparity.output.blocks import Block, Column, Document, Status, bullets, group, lines, table
from moeparity.output.status import state_of
from moeparity.output.words import between, enumerated, few, percent

_MOST_RIVALS = 6
_NO_ONE = {
    "noise": "no more than legal arithmetic makes",
    "as configured": "what the two profiles legally differ in explains it",
    "not explained": "beyond what legal arithmetic makes, and nothing that was tried explains it",
    "undecided": "the data do not decide",
    "wrong checkpoint": (
        "both sides differ from this checkpoint's simulation, and in the same way: they had other weights, or both "
        "have other settings"
    ),
}


def document(examination: Examination, subject: str) -> Document:
    """The examination of some evidence."""
    return Document(command="doctor", subject=subject, blocks=tuple(_blocks(examination)))


def _blocks(of: Examination) -> Iterator[Block]:
    change = of.explanations[0].change if of.answer == "named" else _change(of)
    named_lines = (("to do", change),) if change else ()
    yield Status(
        state_of(of.exit_code),
        f"{verdict(of)}; exit {of.exit_code}",
        lines=(("cause", cause(of)), *named_lines, *_measured(of)),
    )
    sentences = [clue.says for clue in of.clues]
    yield group(
        "Evidence",
        lines(*of.evidence),
        lines(*_off(of)),
        *([bullets(sentences)] if sentences else ()),
        lines(*of.aside),
    )
    if of.tried > 1:
        yield group(f"What explains the difference, {of.tried:,} hypotheses simulated", _table(of))
    if of.asks:
        yield group("What would tell more", bullets(of.asks))


def _measured(of: Examination) -> Iterator[tuple[str, str]]:
    """How large the difference is beside noise; nothing if nothing was simulated."""
    if of.legal_pair:
        tokens = f"{of.tokens:,} tokens of {counted(of.sequences, 'sequence')}"
        yield "size", f"mean |delta| {_number(of.size)} nats per token over {tokens}"
        yield "noise", f"{of.legal:.2g} between {enumerated(of.legal_pair)}, which make no mistake"


def verdict(of: Examination) -> str:
    """The answer in a few words."""
    if of.answer == "named":
        first = of.explanations[0]
        return f"{first.name}, at the {first.party}"
    if of.answer in {"logged", "found"}:
        return enumerated(of.blame.named)
    return _SHORT[of.answer]


def _change(of: Examination) -> str:
    """What to do about what a file names by itself."""
    return next((clue.change for clue in of.clues if clue.cause), "") if of.answer == "found" else ""


_SHORT: dict[Answer, str] = {
    "noise": "noise",
    "as configured": "as configured",
    "not explained": "not explained",
    "undecided": "undecided",
    "wrong checkpoint": "not the checkpoint of either side",
}


def cause(of: Examination) -> str:
    """The answer as a sentence, with how much it explains."""
    if of.answer == "named":
        first = of.explanations[0]
        is_noise = of.left.low < BEYOND * of.legal
        remainder = "what is left is no more than noise" if is_noise else "and more is wrong: what is left is no noise"
        return f"the {first.party} {first.says}: that explains {_share(first)} of the difference, {remainder}"
    if of.answer == "found":
        clue = next(clue for clue in of.clues if clue.cause)
        return f"{clue.says} (`{clue.command}` says more)"
    if of.answer == "logged":
        return f"the log alone names it: {enumerated(of.logged)} (`moeparity metrics` says how)"
    if of.answer == "undecided" and of.rivals and of.explanations[0].share.high > 0:
        rivals = few([*_rivals_and_first(of)], _MOST_RIVALS)
        return f"{_NO_ONE['undecided']} between {rivals}"
    return _NO_ONE[of.answer]


def _rivals_and_first(of: Examination) -> Iterator[str]:
    first = of.explanations[0]
    yield f"{first.name} ({first.party})" if first.party else first.name
    yield from of.rivals


def _off(of: Examination) -> Iterator[str]:
    for record in of.records:
        delta = _number(record.mean_abs_delta)
        yield f"the {record.party} is {delta} nats per token off {record.profile} with nothing wrong"


def _table(of: Examination) -> Block:
    rows = [(each.name, each.party or "-", _share(each), _slope(each), f"{each.size:.2g}") for each in of.explanations]
    titles = (
        Column("hypothesis", "name"),
        Column("side", "word"),
        Column("explains"),
        Column("slope"),
        Column("makes", optional=True),
    )
    note = (
        "explains: the part of the squared differences that its simulation takes away; what rounding makes, nothing "
        "explains. slope: 1 for the true cause. makes: mean |delta| in nats per token, simulated in fp32."
    )
    return table(titles, rows, note)


def _share(of: Explanation) -> str:
    share = of.share
    if share.estimate < 0:
        return "nothing"
    return f"{percent(share.estimate)} [{percent(max(0.0, share.low))}, {percent(min(1.0, share.high))}]"


def _slope(of: Explanation) -> str:
    return f"{of.slope.estimate:.2f} {between(of.slope.low, of.slope.high, '.2f')}"


def _number(of: Interval) -> str:
    return f"{of.estimate:.2g} {between(of.low, of.high, '.2g')}"
