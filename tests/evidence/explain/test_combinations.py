"""Combinations that a search by what is left unexplained loses its way to, and what else gives the same bits."""

from __future__ import annotations

import pytest
import torch

from moeparity.evidence.explain.engines import profiles_choices
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.tries import Tries, minimal
from moeparity.inputs.model import Model
from moeparity.plan.bound import Plan
from tests.evidence.explain.observed import Seen, bound, explain, kernels_of, planted

NORM, ROUTER, ATTEND = "layers[1].moe.norm", "layers[1].moe.router", "layers[1].attention.attend"
EXPERTS, COMBINE = "layers[1].moe.experts", "layers[1].moe.combine"


def at(node: str, **values: str | float) -> Choices:
    return frozenset(((node, name), value) for name, value in values.items())


def told_of(plan: Plan, node_values: Seen, choices: Choices) -> Explanation:
    observation, _ = planted(plan, node_values, choices) or pytest.fail("it runs")
    with torch.inference_mode():
        return explain(plan, node_values.node.name, [observation], node_values.loaded)


def choice_names(node: str, choices: Choices) -> set[str]:
    return {f"{node}:{name}={value}" for (_, name), value in choices}


@pytest.mark.parametrize("numbers", [{"eps": 0.015625, "offset": 1.0}, {"eps": 0.03, "offset": 1.0}])
def test_two_numbers_that_make_up_for_each_other_are_found_beside_two_choices(
    eager: Plan, nodes: dict[str, Seen], numbers: dict[str, float]
) -> None:
    """A greater eps and a smaller offset leave nearly the same. One by one each is solved for beside the other's
    mistake.
    """
    choices = at(NORM, **numbers, weight="bf16", normalized="fp32")
    answer = told_of(eager, nodes[NORM], choices)
    assert answer.explained, answer.matches
    by_choice = {text.partition("=")[0]: text.partition("=")[2] for text in answer.matches[0].choices}
    for name, value in numbers.items():
        assert float(by_choice[f"{NORM}:{name}"]) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("node", "values"),
    [
        (ATTEND, {"scores": "fp32", "probabilities": "fp32"}),
        (ROUTER, {"scores": "bf16", "weights": "fp32"}),
        (ROUTER, {"renormalize": "reciprocal", "renormalize_eps": 0.03125, "scores": "bf16"}),
    ],
)
def test_what_was_planted_is_told_beside_what_gives_the_same_bits(
    eager: Plan, nodes: dict[str, Seen], node: str, values: dict[str, str | float]
) -> None:
    """As one of the answers, or as the first one with one choice that it says is not decided."""
    choices = at(node, **values)
    answer = told_of(eager, nodes[node], choices)
    first = {*answer.matches[0].choices}
    spelled = [{*match.choices} for match in answer.matches if match.exact]
    for choice in answer.open:
        rest = {text for text in first if not text.startswith(f"{choice.place}=")}
        spelled += [rest | {f"{choice.place}={value}"} for value in choice.others]
    assert choice_names(node, choices) in spelled, (answer.matches, answer.open)


def test_an_order_of_which_every_part_leaves_as_much_is_found_whole(eager: Plan, nodes: dict[str, Seen]) -> None:
    """Rows by slots, the last one first: either alone leaves more than neither."""
    node_values = nodes[COMBINE]
    values = {**nodes[EXPERTS].values, **node_values.values}
    del values[EXPERTS]
    choices = at(EXPERTS, activation="fp32") | at(COMBINE, leaves="slot", order="reverse")
    answer = told_of(eager, Seen(node_values.node, values, node_values.loaded), choices)
    assert answer.matches[0].choices == (
        f"{EXPERTS}:activation=fp32",
        f"{COMBINE}:leaves=slot",
        f"{COMBINE}:order=reverse",
    )


def test_a_profile_counts_at_a_node_whose_fused_kernel_ends_behind_it(model: Model, eager: Plan) -> None:
    """Bound to the whole graph: every choice that a profile makes at a node is one of what is tried there."""
    plan = bound(model, "vllm")
    for node in eager.graph.nodes:
        if node.layer not in {None, 1}:
            continue
        kernels, _ = kernels_of(eager, Seen(node, dict.fromkeys([*node.inputs, *node.values], torch.zeros(1)), None))  # type: ignore[arg-type]
        of_node = kernels.replaced.as_chosen({place: s for place, s in plan.settings.items() if place[0] == node.name})
        assert not of_node or any(of_node <= choices for choices in profiles_choices(kernels.replaced)), node.name


def test_what_takes_no_effect_explains_nothing_also_where_the_work_is_spent(
    eager: Plan, nodes: dict[str, Seen]
) -> None:
    """A whole profile sets the layout of keys too, which a kernel that loads tiles does not go by."""
    flash = at(ATTEND, implementation="flash")
    whole = flash | at(ATTEND, kv_layout="cached")
    observation, _ = planted(eager, nodes[ATTEND], whole) or pytest.fail("it runs")
    kernels, _ = kernels_of(eager, nodes[ATTEND])
    tries = Tries(kernels=kernels, samples=[observation.sample(kernels.replaced.nodes)], limit=1000)
    assert tries.exact(whole)
    tries.limit = 0
    assert minimal(tries, whole) == flash
    assert tries.exact(flash), "without another call"
    assert kernels.replaced.in_effect(at(ATTEND, kv_layout="cached")) == at(ATTEND, kv_layout="cached")
