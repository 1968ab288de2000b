"""Further draws of sums in order of arrival, in the phases that have any."""

from __future__ import annotations

from pathlib import Path

from moeparity.bisection.arrival.measure import DRAWS, arrival_draws
from moeparity.errors import Where
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Phase
from moeparity.plan.sides import Side
from tests.plan.configs import QWEN3_MOE, graph

HERE = Where(Path(__file__))
SERVED: tuple[Phase, ...] = ("prefill", "decode")
PLACE = ("layers[1].moe.combine", "order")


def side(folder: Path, address: str) -> Side:
    orders = overrides({address: "unordered(3)"}, HERE)
    of = graph(folder, QWEN3_MOE)
    return Side(
        plan=bind(of, load_profile("vllm", HERE), "bf16", orders, phases=SERVED), schedule=ScheduleSettings(batch=1)
    )


def orders(drawn: Side) -> list[object]:
    return [drawn.plan.at_phase(phase).settings[PLACE].value for phase in SERVED]


def test_only_the_phase_that_has_one_is_drawn_anew(tmp_path: Path) -> None:
    drawn = arrival_draws(side(tmp_path, "layers[*].moe.combine:order@decode"))
    assert [orders(each) for each in drawn] == [["sequential", f"unordered({3 + i})"] for i in range(1, DRAWS + 1)]


def test_every_phase_that_has_one_is(tmp_path: Path) -> None:
    drawn = arrival_draws(side(tmp_path, "layers[*].moe.combine:order"))
    assert [orders(each) for each in drawn] == [[f"unordered({3 + i})"] * 2 for i in range(1, DRAWS + 1)]


def test_a_side_without_one_is_not(tmp_path: Path) -> None:
    assert arrival_draws(side(tmp_path, "layers[0].moe.combine:order")) != []
    plan = bind(graph(tmp_path, QWEN3_MOE), load_profile("vllm", HERE), "bf16", phases=SERVED)
    assert arrival_draws(Side(plan=plan, schedule=ScheduleSettings(batch=1))) == []
