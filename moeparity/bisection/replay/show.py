"""The replay ladder in sentences, with a table of its rungs and one of toggles with and without forced ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from moeparity.bisection.data import ReportData
from moeparity.bisection.replay.data import Replay, Rung
from moeparity.output.blocks import Block, Group, Styled, bullets, columns, group, lines, table
from moeparity.output.words import of_whole, percent

MOST = 0.5
"""If flips carry at least this fraction of the natural KL, they are said to carry most of it."""
_SMALLEST_PRINTED = 0.005
"""A smaller fraction would be printed as 0%."""

_TAKEN = {
    "ids": "With the reference's expert ids forced",
    "ids+weights": "With its routing weights as well",
    "ids+weights+order": "With its slot order as well",
}


def replay_reading(rungs: Sequence[Rung], *, flips: bool) -> list[str]:
    """What a ladder means; `rungs` begin with `natural`. flips: whether some expert set differs there."""
    natural = rungs[0]
    if natural.exact:
        return ["The candidate's logits have the reference's bits with its own routes."]
    if not natural.kl > 0:
        return [f"KL with natural routes is {natural.kl:g}: there are no shares of it."]
    ladder = [rung for rung in rungs if rung.forced != "logits"]
    of_logits = [_of_logits(rung, natural) for rung in rungs if rung.forced == "logits"]
    return [*_steps(ladder, flips=flips), _remainder(ladder[-1], natural), *of_logits]


def _steps(rungs: Sequence[Rung], *, flips: bool) -> Iterator[str]:
    natural = rungs[0].kl
    for upper, rung in pairwise(rungs):
        if rung.forced == "ids" and not flips:
            yield "No expert set differs, so forcing the ids changes no bit."
            continue
        low, high = rung.kl_change_low, rung.kl_change_high
        if low == high == 0:
            yield f"{_TAKEN[rung.forced]} KL stays as it is."
        elif high < 0:
            fall = (upper.kl - rung.kl) / natural
            clause = f": flips carry {'most' if fall >= MOST else 'part'} of it" if rung.forced == "ids" else ""
            yield f"{_TAKEN[rung.forced]} KL falls by {fall:.0%} of the natural KL{clause}."
        elif low > 0:
            rise = (rung.kl - upper.kl) / natural
            yield f"{_TAKEN[rung.forced]} KL rises by {rise:.0%} of the natural KL: errors offset each other."
        else:
            yield f"{_TAKEN[rung.forced]} KL is not shown to change ({low:.2g} to {high:.2g} nats per token)."


def _of_logits(rung: Rung, natural: Rung) -> str:
    """What replaying router logits would buy, against no replay at all."""
    words = "With the reference's router logits, and routes made of them by its own routers,"
    if rung.kl_change_low == rung.kl_change_high == 0:
        return f"{words} KL stays as it is: the routers' own numerics decide the routes, or no logits differ."
    if rung.kl_change_high < 0:
        return f"{words} KL falls by {(natural.kl - rung.kl) / natural.kl:.0%} of the natural KL."
    if rung.kl_change_low > 0:
        return f"{words} KL rises by {(rung.kl - natural.kl) / natural.kl:.0%} of the natural KL."
    return f"{words} KL is not shown to change ({rung.kl_change_low:.2g} to {rung.kl_change_high:.2g} nats per token)."


def _remainder(rung: Rung, natural: Rung) -> str:
    if rung.exact:
        return "Then every bit of the logits is the reference's: all of the divergence goes by way of the routers."
    part = rung.kl / natural.kl
    words = "less than 1%" if part < _SMALLEST_PRINTED else f"{part:.0%}"
    return f"With all routes forced {words} of the natural KL is left: choices outside the routers make that part."


_NAMES = {
    "natural": "none (natural)",
    "ids": "ids",
    "ids+weights": "ids, weights",
    "ids+weights+order": "ids, weights, slot order",
    "logits": "router logits",
}


def show(report: ReportData) -> Iterator[Group]:
    """The group about the candidate with the reference's routes forced."""
    if report.replay is not None:
        yield group("Replay ladder", *replay_blocks(report.replay))


def replay_blocks(replay: Replay) -> Iterator[Block]:
    """The ladder, the toggles, and what they mean."""
    if replay.rungs:
        natural = replay.rungs[0].kl
        titles = ("KL", "k3", "mean |delta|", "max |delta|", "expert set differs", "slots differ")
        rungs = [
            (
                _NAMES[rung.forced],
                of_whole(rung.kl, natural),
                *(f"{rung.k3:.2e}", f"{rung.mean_abs_delta:.2e}", f"{rung.max_abs_delta:.3g}"),
                *(percent(rung.set_flips), percent(rung.slot_flips)),
            )
            for rung in replay.rungs
        ]
        yield table(columns(*titles, first="taken from the reference"), rungs)
        if replay.toggles:
            note = "ids forced: every router takes the reference's experts and weights them itself."
            rows = [
                (toggle.name, of_whole(toggle.alone, natural), of_whole(toggle.alone_forced, natural))
                for toggle in replay.toggles
            ]
            yield lines("")
            yield table(columns("alone: KL", "with ids forced", first="toggle"), rows, Styled(note, "dim"))
    yield bullets(replay.reading)
