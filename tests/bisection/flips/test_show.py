"""Routing flips on the terminal: the lines of every report, and the whole picture within 100 columns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from moeparity.bisection.flips.data import (
    ChoiceFlips,
    CostOf,
    ExpertPair,
    FlipCost,
    FlipDetail,
    LayerDetail,
    LayerFlips,
    LeftAt,
    MarginBin,
    Margins,
    Mean,
    Origin,
    Rates,
    RoutingFlips,
)
from moeparity.bisection.flips.show import short, show_flips
from moeparity.output.blocks import lines as lines_of
from tests.bisection.reports import fill
from tests.printed import printed

ORIGIN = Origin(root_gate=3, root_router=1, after_own=5, after_others=2, before_any=1, unknown=0)
MARGINS = Margins(
    dtype="float32",
    bins=(
        MarginBin(low=0.0, high=1.0, token_layers=4, flips=3),
        MarginBin(low=2.0**18, high=2.0**19, token_layers=100, flips=7),
        MarginBin(low=2.0**32, high=math.inf, token_layers=130, flips=0),
    ),
    ties=6,
    tie_flips=2,
    group_flips=0,
    within_reach=17,
    median_margin=(2.0**32, math.inf),
    median_margin_of_flips=(2.0**18, 2.0**19),
    median_perturbation=(0.0, 1.0),
    median_perturbation_of_flips=None,
)
MEAN = Mean(estimate=0.00123, low=0.001, high=0.0015)
DETAIL = FlipDetail(
    rates=fill(Rates, set_differs=0.05, any_layer=0.075, layers_per_token=0.05, slot_overlap=0.9875, ordered_slots=0.1),
    layers_per_token=(222, 18),
    origin=ORIGIN,
    margins=MARGINS,
    layers=(LayerDetail(layer=1, origin=ORIGIN, weight_drift=0.001, margins=MARGINS),),
    pairs=(ExpertPair(layer=1, reference=7, candidate=12, flips=4),),
    distinct_pairs=11,
    left_at=(LeftAt(node="layers[0].attention.attend", op="attention", through_others=True, tokens=18),),
    choices=(ChoiceFlips(name="op attention:implementation", alone=6, gone=None),),
    cost=FlipCost(flipped=CostOf(tokens=40, kl=MEAN, k3=MEAN, abs_delta=MEAN), unflipped=None, kl_share=None),
)
FLIPS = RoutingFlips(
    layers=(LayerFlips(layer=1, tokens=240, set_flips=12, slot_flips=24, slots_replaced=13, zero_overlap=2),),
    tokens=240,
    tokens_any_layer=18,
    detail=DETAIL,
)


def picture(flips: RoutingFlips) -> list[str]:
    return [line.strip() for line in printed(show_flips(flips)).splitlines()]


def lines(flips: RoutingFlips) -> list[str]:
    return [line.rstrip() for line in printed([lines_of(*short(flips))]).splitlines()]


@pytest.mark.parametrize(
    "line",
    [
        "set differs       5.00%   240 token-layers: another set of experts (a flip)",
        "layer  set differs  ordered slots  zero overlap  root  inherited  tied  median margin",
        "1      12 (5.00%)   24 (10.00%)    2             4     8          2     2^32 and more ulp",
        "0       222     92.50%",
        "op attention:implementation  6 (50.00%)        cannot run",
        "2^18..2^19               100           7      7.00%",
        "below 1                  4             3      75.00%",
        "1      7          12         4",
        "flips in some layer        40      0.00123 [0.001, 0.0015]  0.00123 [0.001, 0.0015]",
    ],
)
def test_the_whole_picture(line: str) -> None:
    assert line in picture(FLIPS)


def test_what_is_not_known_is_not_printed() -> None:
    text = "\n".join(picture(FLIPS))
    for absent in ("unknown", "groups", "weight drift", "flips nowhere", "of the KL"):
        assert absent not in text
    logged = replace(
        DETAIL,
        origin=None,
        margins=None,
        layers=(LayerDetail(layer=1, origin=None, weight_drift=None, margins=None),),
        left_at=(),
        choices=(),
        cost=None,
    )
    text = "\n".join(picture(replace(FLIPS, detail=logged)))
    assert "Expert pairs" in text
    for absent in ("Root", "root", "Choices", "Margin", "Cost", "left"):
        assert absent not in text


def test_nothing_flips() -> None:
    none = replace(DETAIL, rates=fill(Rates, slot_overlap=1.0))
    assert [line for line in picture(replace(FLIPS, detail=none)) if line.startswith("By layer")] == []
    assert short(replace(FLIPS, detail=none)) == []


def test_many_layers_are_joined() -> None:
    spread = replace(DETAIL, layers_per_token=(200, *([1] * 40)))
    text = picture(replace(FLIPS, detail=spread))
    shares = text[text.index("Layers a token flips in") + 2 : text.index("Root or inherited") - 1]
    assert len(shares) == 10
    assert sum(int(line.split()[-2]) for line in shares) == 240
    assert shares[4].startswith("4 to 10 ")
    assert shares[-1].startswith("39 to 40 ")
