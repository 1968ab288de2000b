"""What the terminal shows of forced routes."""

from __future__ import annotations

from moeparity.bisection.replay.data import PlantedTrap, Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.show import replay_blocks, replay_reading
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


def test_mistakes_and_what_they_cost() -> None:
    dear = fill(PlantedTrap, name="1 token before", kl=2.0, price_low=1.0, price_high=3.0, beyond_natural=0.9, k3=4.0)
    cheap = fill(PlantedTrap, name="own weights by slot", kl=5e-4, price_low=-1e-5, price_high=2e-5, beyond_natural=-1)
    middle = fill(
        PlantedTrap, name="prompts as own choices", kl=2e-4, price_low=1e-5, price_high=2e-5, beyond_natural=-1
    )
    text = shown(Replay(rungs=RUNGS, toggles=(), reading=("Flips carry it.",), traps=(dear, cheap, middle)))
    assert text.endswith(
        "\n\n"
        "replayed with a mistake  KL        of natural  price                k3\n"
        "1 token before           2.00e+00  5,000 x     1.0e+00 to 3.0e+00   4.00e+00\n"
        "own weights by slot      5.00e-04  1.25 x      -1.0e-05 to 2.0e-05  0.00e+00\n"
        "prompts as own choices   2.00e-04  0.50 x      1.0e-05 to 2.0e-05   0.00e+00\n"
        "price: KL beyond that of the same replay without the mistake, 95 %, in nats per token.\n"
        "- Flips carry it.\n"
        "- Replayed with one of these mistakes KL is higher than without a replay: 1 token before.\n"
        "- Of these KL does not tell, since none is shown to cost anything here: own weights by slot."
    )


def test_replayed_keys_are_read_against_what_they_stand_beside() -> None:
    keys = fill(Rung, forced="keys", kl=1e-4, kl_change_low=-4e-4, kl_change_high=-2e-4)
    with_ids = fill(Rung, forced="ids+keys", kl=2e-4, kl_change_low=1e-5, kl_change_high=2e-5)
    lines = replay_reading((*RUNGS, keys, with_ids), flips=True)
    assert lines[-2:] == [
        "With the keys that the reference's indexers chose KL falls by 75% of the natural KL.",
        (
            "With its expert ids and the keys that its indexers chose KL is above that with ids alone: 50% of the "
            "natural KL."
        ),
    ]
    same = fill(Rung, forced="keys", kl=4e-4)
    assert replay_reading((*RUNGS, same), flips=True)[-1].endswith("KL stays as it is: no indexer chooses other keys.")
