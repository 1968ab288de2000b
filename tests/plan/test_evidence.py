"""How sure the values are that differences rest on, by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases
from moeparity.plan.config import Config
from moeparity.plan.difference import Difference, differences
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.evidence import evidence, in_words, levels
from moeparity.plan.expand import expand
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.setting import Setting
from moeparity.plan.sides import Side
from moeparity.plan.toggles import toggles
from moeparity.profiles.compare import architectures, compare

HERE = Where(Path("recipe.yaml"), 3)
GRAPH = expand(Config(architectures()["qwen3_moe"]))


def plan(profile: str, dtype: str = "bf16", **settings: str | float) -> Plan:
    by_address = {f"layers[*].moe.{name.replace('__', ':')}": value for name, value in settings.items()}
    return bind(GRAPH, load_profile(profile, HERE), dtype, overrides(by_address, HERE))


def by_name(reference: Plan, candidate: Plan) -> dict[str, tuple[str, str]]:
    """The levels of every toggle of two plans, but for what rests in one of them."""
    sides = (
        Side(plan=reference, schedule=ScheduleSettings(batch=1)),
        Side(plan=candidate, schedule=ScheduleSettings(batch=2)),
    )
    return {
        toggle.name: evidence(toggle.members, reference, candidate)
        for toggle in toggles(*sides)
        if not toggle.members or any(not member.resting for member in toggle.members)
    }


def test_a_toggle_has_the_levels_that_engines_prints() -> None:
    of_toggles = by_name(plan("megatron"), plan("vllm"))
    assert of_toggles.pop("micro_batch") == ("set by the recipe", "set by the recipe")
    printed = {
        toggle.name: (toggle.first.evidence, toggle.second.evidence) for toggle in compare("megatron", "vllm").toggles
    }
    assert of_toggles.keys() == printed.keys()
    lowest = {
        name: tuple(side.split(", ") for side in sides)
        for name, sides in printed.items()
        if name != "op attention:order"
    }
    for name, sides in lowest.items():
        for level, of_members in zip(of_toggles[name], sides, strict=True):
            order = ("unknown", "opaque", "inferred", "read", "verified: ptx", "verified")
            assert order.index(level) <= min(map(order.index, of_members)), name
    assert of_toggles["op combine:order"] == ("opaque", "verified: ptx")
    assert of_toggles["op attention:implementation"][0] == "unknown"


def test_what_the_recipe_sets_is_set_by_the_recipe_and_what_nobody_sets_is_unknown() -> None:
    levels = by_name(plan("hf-eager"), plan("hf-eager", combine__accumulate="fp32", router__renormalize_eps=0.1))
    assert levels["layers[*].moe.combine:accumulate"] == ("verified", "set by the recipe")
    assert levels["layers[*].moe.router:renormalize_eps"] == ("unknown", "set by the recipe")
    assert by_name(plan("hf-eager"), plan("hf-eager", "fp32"))["dtype"] == ("set by the recipe",) * 2


@pytest.mark.parametrize(
    ("level", "lowest"),
    [
        ("opaque: x", "opaque"),
        ("unknown", "unknown"),
        ("read: x", "read"),
        ("verified: ptx: read: x", "verified: ptx"),
    ],
)
def test_the_lowest_of_all_that_a_toggle_rests_on_counts(level: str, lowest: str) -> None:
    eager, default = plan("hf-eager"), plan("hf-default")
    members = [d for d in differences(eager, default) if d.attribute == "accumulate"]
    assert evidence(members, eager, default) == ("verified", "verified")
    assert evidence(members, eager, _with(default, members[-1], level)) == ("verified", lowest)
    assert levels(members, _with(default, members[-1], level)) == ("verified", lowest)


def _with(plan: Plan, difference: Difference, evidence: str) -> Plan:
    """The plan with another evidence for one difference's value."""
    place = difference.places[0]
    setting = plan.settings[place]
    assert setting.rule is not None
    setting_there = Setting(value=setting.value, rule=replace(setting.rule, evidence=evidence))
    return in_all_phases(plan, {place: setting_there})


def test_two_levels_are_said_once_where_they_are_one() -> None:
    assert in_words(("read", "read")) == "read"
    assert in_words(("verified", "read")) == "verified | read"
