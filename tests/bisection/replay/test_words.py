"""The replay ladder in words."""

from __future__ import annotations

import math

from moeparity.bisection.replay.report import Rung
from moeparity.bisection.replay.words import replay_reading


def rung(forced: str, kl: float, low: float, high: float, *, exact: bool = False) -> Rung:
    return Rung(
        forced=forced,
        kl=kl,
        kl_change_low=low,
        kl_change_high=high,
        k3=kl,
        mean_abs_delta=0.0,
        max_abs_delta=0.0,
        set_flips=0.0,
        slot_flips=0.0,
        exact=exact,
    )


NATURAL = rung("natural", 4e-4, 0.0, 0.0)


def test_flips_that_carry_most_of_it() -> None:
    rungs = [
        NATURAL,
        rung("ids", 5.6e-5, -4e-4, -3e-4),
        rung("ids+weights", 2e-5, -5e-5, -1e-5),
        rung("ids+weights+order", 2e-5, 0.0, 0.0),
    ]
    assert replay_reading(rungs, flips=True) == [
        "With the reference's expert ids forced KL falls by 86%: flips carry most of it.",
        "With its routing weights as well KL falls by 9% of the natural KL.",
        "With its slot order as well KL stays as it is.",
        "5% of KL is left with all routes forced: numerics outside the routers make it.",
    ]


def test_a_rise_a_part_and_what_is_not_shown() -> None:
    rungs = [
        NATURAL,
        rung("ids", 3e-4, -2e-4, -5e-5),
        rung("ids+weights", 3.2e-4, 1e-5, 3e-5),
        rung("ids+weights+order", 3e-4, -4e-5, 1e-6),
    ]
    assert replay_reading(rungs, flips=True) == [
        "With the reference's expert ids forced KL falls by 25%: flips carry part of it.",
        "With its routing weights as well KL rises by 5%: errors offset each other.",
        "With its slot order as well KL is not shown to change (-4e-05 to 1e-06 nats per token).",
        "75% of KL is left with all routes forced: numerics outside the routers make it.",
    ]


def test_without_flips_the_ids_change_nothing() -> None:
    rungs = [
        NATURAL,
        rung("ids", 4e-4, 0.0, 0.0),
        rung("ids+weights", 0.0, -5e-4, -3e-4),
        rung("ids+weights+order", 0.0, 0.0, 0.0, exact=True),
    ]
    assert replay_reading(rungs, flips=False) == [
        "No expert set differs, so forcing the ids changes no bit.",
        "With its routing weights as well KL falls by 100% of the natural KL.",
        "With its slot order as well KL stays as it is.",
        "Then every bit of the logits is the reference's: all of the divergence goes by way of the routers.",
    ]


def test_where_there_is_nothing_to_share_out() -> None:
    equal = [rung(name, 0.0, 0.0, 0.0, exact=True) for name in ("natural", "ids")]
    assert replay_reading(equal, flips=False) == [
        "The candidate's logits have the reference's bits with its own routes."
    ]
    for kl in (math.nan, 0.0):
        rungs = [rung("natural", kl, 0.0, 0.0), rung("ids", kl, -math.inf, math.inf)]
        assert replay_reading(rungs, flips=True) == [f"KL with natural routes is {kl:g}: there are no shares of it."]
