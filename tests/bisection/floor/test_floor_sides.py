"""What the reference is tried against itself with, and what the floor says in words."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import pytest

from moeparity.bisection.floor.data import FloorTrial
from moeparity.bisection.floor.measure import DRAWS
from moeparity.bisection.floor.measure import floor_sides as floor_trials
from moeparity.bisection.floor.show import floor_reading
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.metrics.verdict import Interval
from moeparity.ops.attribute import Attribute, Value
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.setting import Place
from moeparity.plan.sides import Side
from moeparity.plan.spec.variant_schema import Placement


@lru_cache(maxsize=2)
def opened(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


HERE = Where(Path(__file__))


def side(
    folder: Path,
    *,
    profile: str = "hf-eager",
    micro_batch: int = 8,
    ranks: int = 1,
    settings: dict[str, Value] | None = None,
) -> Side:
    where = Where(Path(__file__))
    placement = placement_rules(Placement(tensor=ranks), where)
    plan = bind(
        opened(folder).graph,
        load_profile(profile, where),
        "bf16",
        overrides(settings or {}, where),
        placement=placement,
    )
    return Side(plan=plan, schedule=ScheduleSettings(batch=micro_batch))


def tokens_of(sequences: int) -> TokenGrid:
    """So many sequences of eight tokens, all prompt."""
    return TokenGrid(spans=((0, 8),) * sequences, prompts=(8,) * sequences, length=8)


@pytest.mark.parametrize(
    ("micro_batch", "sequences", "tried"),
    [(8, 64, [1, 4]), (9, 64, [1, 3]), (7, 64, [1]), (2, 64, [1]), (1, 64, [2]), (1, 1, [])],
)
def test_other_micro_batches(micro_batch: int, sequences: int, tried: list[int], qwen3: Path) -> None:
    """Proper divisors, so that the sequences computed together stay those of the reference."""
    trials = floor_trials(side(qwen3, micro_batch=micro_batch), tokens_of(sequences), HERE)
    # A dense model has no order to draw.
    assert list(trials) == [f"micro-batch {size}" for size in tried]
    assert [trial.schedule.batch for trial in trials.values()] == tried
    assert all(trial.plan == side(qwen3).plan for trial in trials.values())


def drawn_attributes(reference: Side) -> dict[Place, Attribute]:
    """Every order in effect whose other values could be the same engine at another time."""
    return {
        (node.name, a.name): a
        for node in reference.plan.graph.nodes
        for a in node.attributes
        if a.kind == "order" and a.redrawn and a.name in reference.plan.active(node)
    }


@pytest.mark.parametrize(("ranks", "settings"), [(1, {}), (2, {"layers[*].*.reduce:collective": "none"})])
def test_orders_are_drawn_for_every_node_and_nothing_else_is(
    qwen3_moe: Path, ranks: int, settings: dict[str, Value]
) -> None:
    reference = side(qwen3_moe, ranks=ranks, settings=settings)
    drawn = [trial for name, trial in floor_trials(reference, tokens_of(64), HERE).items() if name.startswith("orders")]
    assert len(drawn) == DRAWS
    orders = drawn_attributes(reference)
    for trial in drawn:
        assert trial.schedule == reference.schedule
        for place, setting in trial.plan.settings.items():
            if place not in orders:
                assert setting == reference.plan.settings[place]
            else:
                assert setting.value in orders[place].values
                assert "drawn with seed" in setting.rule.evidence
    first_values, second_values = ({p: s.value for p, s in trial.plan.settings.items()} for trial in drawn)
    assert first_values != second_values
    again = floor_trials(reference, tokens_of(64), HERE)["orders drawn with seed 0"]
    assert {p: s.value for p, s in again.plan.settings.items()} == first_values


def test_every_order_that_may_vary_gets_drawn(qwen3_moe: Path) -> None:
    """Other orders are another library, or need an order of time that nobody would take by chance."""
    reference = side(qwen3_moe, profile="hf-default")
    orders = drawn_attributes(reference)
    assert {attribute for _, attribute in orders} == {"slots", "leaves", "order"}
    assert {node.split(".")[-1] for node, _ in orders} == {"router", "combine"}
    drawn = floor_trials(reference, tokens_of(64), HERE)["orders drawn with seed 0"].plan
    assert {place for place, setting in drawn.settings.items() if "floor" in setting.origin} == orders.keys()


def test_over_ranks_the_order_of_the_all_reduce_is_drawn_too(qwen3_moe: Path) -> None:
    one_rank, library = (drawn_attributes(side(qwen3_moe, ranks=ranks)) for ranks in (1, 2))
    assert one_rank == library, "a library adds in its own order"
    free = drawn_attributes(side(qwen3_moe, ranks=2, settings={"layers[*].*.reduce:collective": "none"}))
    added = free.keys() - one_rank.keys()
    assert {(node.split(".")[-1], attribute) for node, attribute in added} == {("reduce", "order")}
    assert len(added) == 2 * 3


def value(name: str, number: float, *, bit_identical: bool = False) -> FloorTrial:
    interval = Interval(estimate=number, low=number, high=number, level=0.95, method="none")
    return FloorTrial(name=name, value=interval, bit_identical=bit_identical, flipped_routes=None)


def reading(*values: FloorTrial, of: float = 1e-3, gate: float = 1e-2) -> str:
    return " ".join(floor_reading(values, metric="k3", value=of, gate=gate))


def test_the_largest_trial_is_the_floor() -> None:
    words = reading(value("a", 2e-4), value("b", 5e-4), value("c", 0.0, bit_identical=True))
    assert words.startswith("k3 is 2 x the floor, 0.0005 (b). The candidate is at the floor")
    assert "against itself" not in words
    assert "no more than" not in words


def test_a_gate_below_the_floor_is_said_to_be() -> None:
    assert "The gate 0.0001 lies below the floor: the reference does not pass this gate against itself." in reading(
        value("a", 5e-4), gate=1e-4
    )
    assert "lies below the floor" not in reading(value("a", 5e-4), gate=5e-4)


def test_a_candidate_within_the_floor_is_said_to_be() -> None:
    assert "no more than the reference differs from itself" in reading(value("a", 5e-3))
    assert "The candidate is at the floor" in reading(value("a", 5e-4))
    assert "at the floor" not in reading(value("a", 4.9e-4))


def test_a_floor_that_is_no_number_is_never_a_ratio() -> None:
    words = reading(value("a", math.nan), value("b", 1e-3))
    assert words.startswith("Floor: k3 nan")
    assert " x the floor" not in words


def test_an_order_of_one_phase_alone_is_drawn_too(qwen3_moe: Path) -> None:
    """In decode alone no library adds up the ranks' sums here, so that their order may be any."""
    where = Where(Path(__file__))
    settings = overrides({"layers[*].*.reduce:collective@decode": "none"}, where)
    graph, ranks = opened(qwen3_moe).graph, placement_rules(Placement(tensor=2), where)
    profile = load_profile("hf-eager", where)
    plan = bind(graph, profile, "bf16", settings, placement=ranks, phases=("prefill", "decode"))
    trial = floor_trials(Side(plan=plan, schedule=ScheduleSettings(batch=8)), tokens_of(64), HERE)[
        "orders drawn with seed 0"
    ].plan
    node = next(node for node in graph.nodes if node.name == "layers[0].moe.reduce")
    assert ["order" in plan.at_phase(phase).active(node) for phase in plan.phases] == [False, True]
    assert "floor" in trial.at_phase("decode").settings[node.name, "order"].origin
    collectives = [trial.at_phase(phase).settings[node.name, "collective"].value for phase in plan.phases]
    assert collectives == [plan.settings[node.name, "collective"].value, "none"]
