"""An examination as shown: the answer, what it rests on, what was tried, what would tell more."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.doctor.report import A_FEW, BEYOND, Answer, Examination, Explanation, Noise
from moeparity.errors import counted
from moeparity.logs.noise_gate import FLIPPED
from moeparity.metrics.verdict import Interval
from moeparity.output.blocks import Block, Column, Document, Status, bullets, group, lines, table
from moeparity.output.status import state_of
from moeparity.output.words import between, enumerated, few

_OF_MANY = 3
"""How many rivals are named where there are more than a few."""
_STEEP = 100.0
_NO_ONE = {
    "noise": "no more than legal arithmetic makes",
    "as configured": "the legal differences of the two profiles explain it",
    "not explained": "beyond what legal arithmetic makes, and nothing that was tried explains it",
    "undecided": "the data do not decide",
    "wrong checkpoint": (
        "both sides differ from this checkpoint's simulation, and in the same way: they had other weights, or both "
        "have other settings"
    ),
}
_NOT_APART = "these log-probabilities do not tell them apart"


def document(examination: Examination, subject: str) -> Document:
    """The examination of some evidence."""
    return Document(command="doctor", subject=subject, blocks=tuple(_blocks(examination)))


def _blocks(of: Examination) -> Iterator[Block]:
    named_lines = tuple(_beside_name(of)) if of.answer == "named" else tuple(_change(of))
    yield Status(
        state_of(of.exit_code),
        f"{verdict(of)}; exit {of.exit_code}",
        lines=(("cause", cause(of)), *named_lines, *_measured(of)),
    )
    sentences = [clue.says for clue in of.clues]
    yield group(
        "Evidence",
        lines(*of.evidence),
        lines(*_off(of), *of.where),
        *([bullets(sentences)] if sentences else ()),
        lines(*of.aside),
    )
    if of.noise is not None:
        yield group(f"Noise or bug, at {of.noise.level:.0%}", _noise(of.noise))
    if of.tried > 1:
        yield group(f"What explains the difference, {of.tried:,} hypotheses simulated", _table(of), *_sample(of))
    if of.asks or of.parting:
        yield group("What would tell more", bullets([*of.parting, *of.asks]))


def _beside_name(of: Examination) -> Iterator[tuple[str, str]]:
    """What is known of a cause beside its name."""
    first = of.explanations[0]
    if of.two is not None:
        for each in of.two.causes:
            if each.alike:
                yield "or", f"{enumerated(each.alike)} in place of {each.name}: {_NOT_APART}"
        yield "to do", " and ".join(dict.fromkeys(each.change for each in of.two.causes))
        return
    if first.number is not None:
        low, high = first.number.low, first.number.high
        yield "number", f"{first.number.estimate:.4g} {between(low, high, '.4g')}"
    if first.alike:
        yield "or", f"{enumerated(first.alike)}: {_NOT_APART}"
    if first.change:
        yield "to do", first.change


def _measured(of: Examination) -> Iterator[tuple[str, str]]:
    """How large the difference is beside noise; nothing if nothing was simulated."""
    if of.legal_pair:
        tokens = f"{counted(of.tokens, 'token')} of {counted(of.sequences, 'sequence')}"
        yield "size", f"mean |delta| {_number(of.size)} nats per token over {tokens}"
        yield "noise", f"{of.legal:.2g} between {enumerated(of.legal_pair)}, which make no mistake"


def verdict(of: Examination) -> str:
    """The answer in a few words."""
    if of.answer == "named":
        causes = of.explanations[:1] if of.two is None else of.two.causes
        return " and ".join(f"{each.name}, at the {each.party}" for each in causes)
    if of.answer in {"logged", "found"}:
        return enumerated(of.blame.named)
    return _SHORT[of.answer]


def _change(of: Examination) -> Iterator[tuple[str, str]]:
    """What to do about what a file names by itself."""
    if of.answer == "found":
        yield from [("to do", clue.change) for clue in of.clues if clue.cause and clue.change][:1]


_SHORT: dict[Answer, str] = {
    "noise": "noise",
    "as configured": "as configured",
    "not explained": "not explained",
    "undecided": "undecided",
    "wrong checkpoint": "not the checkpoint of either side",
}


def cause(of: Examination) -> str:
    """The answer as a sentence, with how much it explains."""
    if of.two is not None:
        sentences = " and ".join(f"the {each.party} {each.says}" for each in of.two.causes)
        return f"{sentences}: both explain {_share(of.two.share)} of the difference, what is left is no more than noise"
    if of.answer == "named":
        first = of.explanations[0]
        is_noise = of.left.low < BEYOND * of.legal
        remainder = (
            "what is left is no more than noise" if is_noise else "and more is wrong: what is left is more than noise"
        )
        return f"the {first.party} {first.says}: that explains {_share(first.share)} of the difference, {remainder}"
    if of.answer == "found":
        clue = next(clue for clue in of.clues if clue.cause)
        return f"{clue.says} (`{clue.command}` says more)"
    if of.answer == "logged":
        return f"the log alone names it: {enumerated(of.logged)} (`moeparity metrics` says how)"
    if of.is_stopped:
        first = of.explanations[0]
        best = f"{first.name} ({first.party}), which explains {_share(first.share)}" if first.party else "none"
        return f"stopped before its end, so that nothing is settled; the best so far: {best}"
    if of.answer == "undecided" and of.rivals and of.explanations[0].share.high > 0:
        rivals = [*_rivals_and_first(of)]
        shown = few(rivals, A_FEW if len(rivals) <= A_FEW else _OF_MANY)
        return f"{_NO_ONE['undecided']} between {shown}"
    return _NO_ONE[of.answer]


def _rivals_and_first(of: Examination) -> Iterator[str]:
    first = of.explanations[0]
    yield f"{first.name} ({first.party})" if first.party else first.name
    yield from of.rivals


def _off(of: Examination) -> Iterator[str]:
    for record in of.records:
        delta = _number(record.mean_abs_delta)
        yield f"the {record.party} is {delta} nats per token off {record.profile} with nothing wrong"


def _noise(of: Noise) -> Block:
    rows = [
        (each.name, f"{each.recorded:.2g}", f"{each.middle:.2g}", f"{each.bound:.2g}", _PLACE[each.is_inside])
        for each in of.statistics
    ]
    titles = (
        Column("statistic", "name"),
        Column("recorded"),
        Column("legal"),
        Column("bound"),
        Column("place", "word"),
    )
    note = (
        f"In nats, on these tokens. legal: the median over pairs of {of.engines} engines that compute the same model, "
        "with roundings, orders and forms drawn at random. bound: a clean run lies below it, at the level above; set "
        "it as the gate."
    )
    if any(each.name == FLIPPED for each in of.statistics):
        note += (
            f" {FLIPPED}: the fraction of tokens whose recorded routes differ in some MoE layer from those of the "
            "trainer with nothing wrong."
        )
    return table(titles, rows, note)


_PLACE = {True: "inside", False: "beyond"}


def _table(of: Examination) -> Block:
    rows = [
        (each.name, each.party or "-", _share(each.share), _slope(each), f"{each.size:.2g}") for each in of.explanations
    ]
    titles = (
        Column("hypothesis", "name"),
        Column("side", "word"),
        Column("explains"),
        Column("slope"),
        Column("makes", optional=True),
    )
    note = (
        "explains: the fraction of the squared differences that the simulation takes away, where each token is divided "
        "by the spread of engines there; no hypothesis explains rounding. slope: 1 for the true cause. makes: mean "
        "|delta| in nats per token, simulated in fp32."
    )
    return table(titles, rows, note)


def _sample(of: Examination) -> Iterator[Block]:
    """What ran on a sample alone."""
    if of.sampled is not None and of.sampled.ruled_out:
        yield lines(
            f"{of.sampled.ruled_out:,} of them were simulated on a sample of {of.sampled.sequences} sequences, half of "
            "which are those with most of the difference; there they surely explain less than others. The other "
            f"{of.tried - of.sampled.ruled_out:,} were simulated on all {of.sequences} sequences, which judge them."
        )


def _share(share: Interval) -> str:
    if share.estimate < 0:
        return "nothing"
    if math.isinf(share.low) and math.isinf(share.high):
        return f"{share.estimate:.1%} {between(share.low, share.high)}"
    return f"{share.estimate:.1%} [{max(0.0, share.low):.1%}, {min(1.0, share.high):.1%}]"


def _slope(of: Explanation) -> str:
    low, high = of.slope.low, of.slope.high
    # A bound of thousands is that of a slope without one.
    low, high = (bound if abs(bound) < _STEEP else math.copysign(math.inf, bound) for bound in (low, high))
    return f"{of.slope.estimate:.2f} {between(low, high, '.2f')}"


def _number(of: Interval) -> str:
    return f"{of.estimate:.2g} {between(of.low, of.high, '.2g')}"
