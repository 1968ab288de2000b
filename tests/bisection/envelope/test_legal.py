"""Another model is no legal choice, and a user's function is one only inside the envelope of legal orders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.envelope.measure import NodeBands
from moeparity.bisection.observed import Observed
from moeparity.errors import Where
from moeparity.evidence.envelope.band import Band
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.expand import expand
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side
from moeparity.plan.toggles import Toggle, toggles
from moeparity.profiles.compare import architectures

HERE = Where(Path("recipe.yaml"), 3)
INSIDE = Band(draws=16, tokens=8, elements=64, differing=20, outside=1, own_outside=(2, 1))
OUTSIDE = replace(INSIDE, outside=40)
SETTINGS: dict[str, tuple[str, Value]] = {
    "layers[*].moe.router:renormalize_eps": ("semantics", 0.1),
    "layers[*].moe.combine:accumulate": ("rounding", "fp32"),
    "layers[*].moe.combine:leaves": ("order", "slot"),
    "layers[*].attention.attend:implementation": ("form", "sdpa"),
}


def observed(bands: dict[str, NodeBands] | None) -> Observed:
    empty: Any = None
    sections = {} if bands is None else {"envelope": bands}
    return Observed(changes=empty, routes=empty, logits=empty, cost=empty, sections=sections, answers={}, refused={})


@pytest.fixture(scope="module")
def choices() -> list[Toggle]:
    graph = expand(Config(architectures()["qwen3_moe"]))
    settings = overrides({key: value for key, (_, value) in SETTINGS.items()}, HERE)
    plans = [bind(graph, load_profile("hf-eager", HERE), "bf16", rules) for rules in ((), settings)]
    reference, candidate = (
        Side(plan=plan, schedule=ScheduleSettings(batch=size)) for size, plan in enumerate(plans, 1)
    )
    return toggles(reference, candidate)


def test_all_but_another_model_is_legal(choices: list[Toggle]) -> None:
    kinds = {toggle.kind: is_legal(toggle, observed(None)) for toggle in choices}
    assert kinds == {"semantics": False, "rounding": True, "order": True, "form": True, "schedule": True}
    several = replace(choices[0], kind="several", members=tuple(m for toggle in choices for m in toggle.members))
    assert not is_legal(several, observed(None)), "one that holds another model is another model"


@pytest.mark.parametrize(
    ("bands", "legal"),
    [
        (None, False),
        ({}, False),
        (NodeBands(reference=INSIDE, candidate=INSIDE), True),
        (NodeBands(reference=INSIDE, candidate=OUTSIDE), False),
        (NodeBands(reference=OUTSIDE), False),
        (NodeBands(not_drawn="no sum"), False),
    ],
)
def test_a_users_function_is_legal_inside_the_envelope_only(
    choices: list[Toggle], bands: NodeBands | dict[str, NodeBands] | None, legal: bool
) -> None:
    member = replace(choices[0].members[0], kind="implementation")
    toggle = replace(choices[0], kind="implementation", members=(member,))
    drawn = {member.node.name: bands} if isinstance(bands, NodeBands) else bands
    assert is_legal(toggle, observed(drawn)) is legal


def test_a_part_of_the_schedule_that_decides_what_is_computed_is_no_legal_choice() -> None:
    graph = expand(Config(architectures()["qwen3_moe"]))
    plan = bind(graph, load_profile("hf-eager", HERE), "bf16", ())
    packed = ScheduleSettings(pack=64)
    for changed_schedule, legal in ((replace(packed, mask="none"), False), (replace(packed, pack=32), True)):
        (toggle,) = toggles(Side(plan=plan, schedule=packed), Side(plan=plan, schedule=changed_schedule))
        assert (is_legal(toggle, observed(None)), toggle.kind) == (legal, "schedule" if legal else "semantics")
