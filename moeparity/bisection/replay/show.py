"""The replay ladder in sentences, with a table of its rungs and one of toggles with and without forced ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from moeparity.bisection.data import ReportData
from moeparity.bisection.replay.data import PlantedTrap, Replay, Rung
from moeparity.errors import listed
from moeparity.output.blocks import Block, Group, Styled, bullets, columns, group, lines, table
from moeparity.output.words import of_whole, percent

MOST = 0.5
"""If flips carry at least this fraction of the natural KL, they are said to carry most of it."""
_LARGE = 10
"""From here on factors are printed without decimals."""
_SMALLEST_PRINTED = 0.005
"""A smaller fraction would be printed as 0%."""

_TAKEN = {
    "ids": "With the reference's expert ids forced",
    "ids+weights": "With its routing weights as well",
    "ids+weights+order": "With its slot order as well",
}


_OTHERS = {
    "logits": "With the reference's router logits, and routes made of them by its own routers,",
    "keys": "With the keys that the reference's indexers chose",
    "ids+keys": "With its expert ids and the keys that its indexers chose",
}


def replay_reading(rungs: Sequence[Rung], *, flips: bool) -> list[str]:
    """What a ladder means; `rungs` begin with `natural`. flips: whether some expert set differs there."""
    natural = rungs[0]
    if natural.exact:
        return ["The candidate's logits have the reference's bits with its own routes."]
    if not natural.kl > 0:
        return [f"KL with natural routes is {natural.kl:g}: there are no shares of it."]
    of = {rung.forced: rung for rung in rungs}
    ladder = [of[forced] for forced in ("natural", *_TAKEN) if forced in of]
    others = [_of_other(of[forced], words, natural) for forced, words in _OTHERS.items() if forced in of]
    return [*_steps(ladder, flips=flips), _remainder(ladder[-1], natural), *others]


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


_UNCHANGED = {
    "logits": "the routers' own numerics decide the routes, or no logits differ",
    "keys": "no indexer chooses other keys",
    "ids+keys": "beside the forced ids no indexer chooses other keys",
}


def _of_other(rung: Rung, words: str, natural: Rung) -> str:
    """What replaying something else than routes would buy: router logits, or an indexer's keys."""
    low, high = rung.kl_change_low, rung.kl_change_high
    if low == high == 0:
        return f"{words} KL stays as it is: {_UNCHANGED[rung.forced]}."
    if low <= 0 <= high:
        return f"{words} KL is not shown to change ({low:.2g} to {high:.2g} nats per token)."
    if rung.forced == "ids+keys":
        side = "below" if high < 0 else "above"
        return f"{words} KL is {side} that with ids alone: {rung.kl / natural.kl:.0%} of the natural KL."
    change = abs(natural.kl - rung.kl) / natural.kl
    return f"{words} KL {'falls' if high < 0 else 'rises'} by {change:.0%} of the natural KL."


def _remainder(rung: Rung, natural: Rung) -> str:
    if rung.exact:
        return "Then every bit of the logits is the reference's: all of the divergence goes by way of the routers."
    part = rung.kl / natural.kl
    words = "less than 1%" if part < _SMALLEST_PRINTED else f"{part:.0%}"
    return f"With all routes forced {words} of the natural KL is left: choices outside the routers make that part."


def traps_reading(traps: Sequence[PlantedTrap]) -> Iterator[str]:
    """Which mistakes of a replay make it worse than none, and which are not seen in these numbers."""
    worse = [trap.name for trap in traps if trap.beyond_natural > 0]
    if worse:
        yield f"Replayed with one of these mistakes KL is higher than without a replay: {listed(worse)}."
    unseen = [trap.name for trap in traps if not trap.price_low > 0]
    if unseen:
        yield f"Of these KL does not tell, since none is shown to cost anything here: {listed(unseen)}."


_NAMES = {
    "natural": "none (natural)",
    "ids": "ids",
    "ids+weights": "ids, weights",
    "ids+weights+order": "ids, weights, slot order",
    "logits": "router logits",
    "keys": "indexer keys",
    "ids+keys": "ids, indexer keys",
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
        if replay.traps:
            yield lines("")
            yield _traps_table(replay.traps, natural)
    yield bullets(replay.reading)
    if replay.rungs and replay.traps:
        yield bullets(tuple(traps_reading(replay.traps)))


def _traps_table(traps: Sequence[PlantedTrap], natural: float) -> Block:
    rows = [
        (
            *(trap.name, f"{trap.kl:.2e}", _times(trap.kl / natural) if natural else ""),
            *(f"{trap.price_low:.1e} to {trap.price_high:.1e}", f"{trap.k3:.2e}"),
        )
        for trap in traps
    ]
    note = "price: KL beyond that of the same replay without the mistake, 95 %, in nats per token."
    titles = ("KL", "of natural", "price", "k3")
    return table(columns(*titles, first="replayed with a mistake"), rows, Styled(note, "dim"))


def _times(factor: float) -> str:
    return f"{factor:,.0f} x" if factor >= _LARGE else f"{factor:.2f} x"
