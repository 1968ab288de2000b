"""What the terminal shows of forced routes."""

from __future__ import annotations

from moeparity.bisection.replay.data import Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.show import replay_blocks
from tests.bisection.reports import fill
from tests.printed import printed


def shown(replay: Replay) -> str:
    return "\n".join(line.rstrip() for line in printed(replay_blocks(replay), 120).splitlines())


RUNGS = (
    fill(
        Rung,
        forced="natural",
        kl=4e-4,
        k3=3e-4,
        mean_abs_delta=0.01,
        max_abs_delta=0.24,
        set_flips=0.03,
        slot_flips=0.1,
    ),
    fill(Rung, forced="ids", kl=1e-4, k3=1e-4, mean_abs_delta=0.005, max_abs_delta=0.2, slot_flips=0.08),
    fill(Rung, forced="ids+weights", kl=5e-5, k3=5e-5, mean_abs_delta=0.002, max_abs_delta=0.1, slot_flips=0.07),
    fill(Rung, forced="ids+weights+order"),
)


def test_ladder_and_toggles() -> None:
    toggles = (
        ReplayedToggle(name="op combine:accumulate", alone=2e-4, alone_forced=1e-4),
        ReplayedToggle(name="refused", alone=None, alone_forced=None),
    )
    assert shown(Replay(rungs=RUNGS, toggles=toggles, reading=("Flips carry it.",))) == (
        "taken from the reference  KL             k3        mean |delta|  max |delta|  "
        "expert set differs  slots differ\n"
        "none (natural)            4.00e-04 100%  3.00e-04  1.00e-02      0.24         3.00%               10.00%\n"
        "ids                       1.00e-04  25%  1.00e-04  5.00e-03      0.2          0.00%               8.00%\n"
        "ids, weights              5.00e-05  12%  5.00e-05  2.00e-03      0.1          0.00%               7.00%\n"
        "ids, weights, slot order  0.00e+00   0%  0.00e+00  0.00e+00      0            0.00%               0.00%\n"
        "\n"
        "toggle                 alone: KL      with ids forced\n"
        "op combine:accumulate  2.00e-04  50%  1.00e-04  25%\n"
        "refused                cannot run     cannot run\n"
        "ids forced: every router takes the reference's experts and weights them itself.\n"
        "- Flips carry it."
    )


def test_without_rungs_there_are_words_only() -> None:
    replay = Replay(rungs=(), toggles=(), reading=("There is no router.",))
    assert shown(replay) == "- There is no router."
