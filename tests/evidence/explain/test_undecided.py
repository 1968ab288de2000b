"""What recorded values leave undecided: nothing is `verified: trace` that was not held against its other values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moeparity.evidence.explain import undecided
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import Explanation, OpenChoice
from moeparity.evidence.explain.vocabulary import listed_choices
from moeparity.numerics.bits import same_bits
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases
from moeparity.plan.setting import Place
from tests.evidence.explain.observed import Seen, explain, kernels_of, on_screen, planted, result, rules
from tests.test_reports import refused

AT = "layers[1]"
NORM, GATE, COMBINE = f"{AT}.moe.norm", f"{AT}.moe.gate", f"{AT}.moe.combine"
EXPERTS, ROUTER, ATTEND = f"{AT}.moe.experts", f"{AT}.moe.router", f"{AT}.attention.attend"
Q_PROJ, O_PROJ = f"{AT}.attention.q_proj", f"{AT}.attention.o_proj"
ALL = (NORM, GATE, COMBINE, EXPERTS, ATTEND, Q_PROJ, O_PROJ, "lm_head", "embed")
WHOLE_NUMBERS = {*range(33), *(2**i for i in range(5, 13)), *(3 * 2**i for i in range(11))}


def ask(plan: Plan, node_values: Seen, observation: Observation | None = None) -> Explanation:
    with torch.inference_mode():
        return explain(
            plan, node_values.node.name, [observation or Observation(values=node_values.values)], node_values.loaded
        )


def admissible(plan: Plan, node_values: Seen, name: str) -> Iterator[str | float]:
    """The other values of an attribute, as its declaration allows them; whole numbers from a list of the test's own."""
    attribute = node_values.node.op.attribute(name)
    assert attribute is not None
    at = plan.active(node_values.node)[name]
    values: list[str | float] = [*(v for v in attribute.values if v != "model"), *attribute.usual]
    if attribute.kind == "placement":
        values = [1, 2, 4, 8, 16]
    elif attribute.least is not None:
        values += sorted(number for number in WHOLE_NUMBERS if number >= attribute.least)
    yield from (value for value in values if value != at)


@pytest.mark.parametrize("name", ALL)
def test_what_is_verified_by_a_trace_has_no_other_value_with_the_same_bits(
    eager: Plan, nodes: dict[str, Seen], name: str
) -> None:
    """Each value that a written profile verifies is exchanged for every other one that its op allows."""
    node_values, answer = nodes[name], ask(eager, nodes[name])
    kernels, observation = kernels_of(eager, node_values)
    sample = observation.sample(kernels.replaced.nodes)
    verified = {key: value for key, (value, level, _) in rules(answer).items() if level == "verified: trace"}
    with torch.inference_mode():
        for key in verified:
            for value in admissible(eager, node_values, key):
                outputs = kernels.outputs(frozenset([((name, key), value)]), sample)
                assert outputs is None or not all(map(same_bits, sample.results, outputs)), (key, value)
    # Its sum is bf16 already, so no bit tells whether a store would cut it.
    assert ("output" in verified) == (name != COMBINE)


def opened_at(answer: Explanation, attribute: str) -> OpenChoice:
    return next(choice for choice in answer.open if choice.place == f"{answer.node}:{attribute}")


def test_whole_numbers_that_do_as_well_are_named_and_not_stated(eager: Plan, nodes: dict[str, Seen]) -> None:
    """In bf16 a projection cut into two parts, or over ranks, or computed row by row, has the same bits."""
    answer = ask(eager, nodes[Q_PROJ])
    # On a grid of 8 bits the projection gives other bits.
    assert rules(answer).keys() == {"output", "weights", "activations"}
    for attribute in ("splits", "rows", "tensor", "blocks"):
        choice = opened_at(answer, attribute)
        assert choice.others
        assert not choice.untried
    assert "splits 1 or 2" in on_screen(result(answer))
    assert "splits" in profile_text(result(answer), "written").partition("kind:")[0]


def test_that_nothing_is_cut_is_tried_where_the_profile_cuts(eager: Plan, nodes: dict[str, Seen]) -> None:
    place = (EXPERTS, "tensor")
    cut = bound_with(eager, place, 2)
    kernels, observation = kernels_of(cut, nodes[EXPERTS])
    assert (place, 1) in set(listed_choices(kernels.replaced, kernels.replaced.plan))
    answer = ask(cut, nodes[EXPERTS], observation)
    assert answer.matches[0].choices == (f"{EXPERTS}:tensor=1",)


def bound_with(plan: Plan, place: Place, value: str | float) -> Plan:
    return in_all_phases(plan, {place: replace(plan.settings[place], value=value)})


def test_a_number_is_held_against_others(eager: Plan, nodes: dict[str, Seen]) -> None:
    """Of values around 1, no eps of 1e-6 can be known; of values around 1e-4 it is, and its other spelling is no other
    value.
    """
    node_values = nodes[NORM]
    assert (
        "0.0" in opened_at(ask(eager, node_values), "eps").others
        or "5e-07" in opened_at(ask(eager, node_values), "eps").others
    )
    small = {**node_values.values, node_values.node.inputs[0]: node_values.values[node_values.node.inputs[0]] * 1e-4}
    kernels, _ = kernels_of(eager, node_values)
    outputs = kernels.outputs(frozenset(), Observation(values=small).sample(kernels.replaced.nodes))
    assert outputs is not None
    answer = ask(eager, node_values, Observation(values={**small, NORM: outputs[0]}))
    assert answer.as_started
    assert f"{NORM}:eps" not in {choice.place for choice in answer.open}
    assert rules(answer)["eps"][:2] == ("config", "verified: trace")


@pytest.mark.parametrize(("name", "work"), [(Q_PROJ, 0), (Q_PROJ, 8), (NORM, 20), (COMBINE, 10), (EXPERTS, 100)])
def test_a_check_that_ran_out_of_work_says_so_and_verifies_nothing_it_did_not_try(
    eager: Plan, nodes: dict[str, Seen], monkeypatch: pytest.MonkeyPatch, name: str, work: int
) -> None:
    whole = ask(eager, nodes[name])
    assert not any(choice.untried for choice in whole.open)
    monkeypatch.setattr(undecided, "WORK", work)
    answer = ask(eager, nodes[name])
    untried = {choice.place.rpartition(":")[2]: choice.untried for choice in answer.open if choice.untried}
    assert untried
    assert untried.keys().isdisjoint(rules(answer))
    assert "not tried, since the bound on the work was reached: " in on_screen(result(answer))
    document = json.loads(result(answer).to_json())
    assert refused("explain", document) == []
    (node,) = document["nodes"]
    assert {c["place"]: tuple(c["untried"]) for c in node["open"]} == {c.place: c.untried for c in answer.open}
    for choice in answer.open:
        assert set(choice.others).isdisjoint(choice.untried)


def test_what_is_too_dear_to_try_once_is_untried(
    eager: Plan, nodes: dict[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GEMM that is written out takes more than may be spent; earlier that counted as another value's bits."""
    monkeypatch.setattr(undecided, "WORK", 24)
    choice = opened_at(ask(eager, nodes["lm_head"]), "order")
    assert set(choice.untried) >= {"sequential", "reverse", "fold_hi", "fold_lo"}
    assert not choice.others


def test_a_value_that_reads_what_was_not_recorded_is_not_ruled_out(
    eager: Plan, nodes: dict[str, Seen], qwen3_moe: Path
) -> None:
    """Rows that meet their weights in the experts need these weights, which the trace lacks here."""
    node_values = nodes[EXPERTS]
    weights = next(
        value for value in node_values.node.inputs if value in node_values.values and value.endswith("weights")
    )
    values = {name: value for name, value in node_values.values.items() if name != weights}
    answer = ask(eager, node_values, Observation(values=values))
    assert answer.as_started
    choice = opened_at(answer, "score_site")
    assert choice.unread
    assert "score_site" not in rules(answer)
    assert "the node would read what was not recorded: score_site " in on_screen(result(answer))


def planted_answer(plan: Plan, node_values: Seen, choices: Choices) -> Explanation:
    observation, _ = planted(plan, node_values, choices) or pytest.fail("it runs")
    return ask(plan, node_values, observation)


def test_an_explaining_choice_that_others_stand_for_is_inferred(eager: Plan, nodes: dict[str, Seen]) -> None:
    answer = planted_answer(eager, nodes[COMBINE], frozenset([((COMBINE, "accumulate"), "fp32")]))
    stated = rules(answer)
    value, level, source = stated["accumulate"]
    assert (value, level) == ("fp32", "inferred")
    assert "but accumulate fp64 gives them too" in source
    assert stated["weighted"][1] == "verified: trace"


def test_a_place_at_which_another_combination_differs_is_not_verified(eager: Plan, nodes: dict[str, Seen]) -> None:
    """What is told as the same bits is another value of its places, whatever each place shows by itself."""
    answer = planted_answer(eager, nodes[COMBINE], frozenset([((COMBINE, "accumulate"), "fp32")]))
    others = {choice.partition("=")[0].rpartition(":")[2] for match in answer.matches[1:] for choice in match.choices}
    assert "expert" in others
    assert {key for key, (_, level, _) in rules(answer).items() if level == "verified: trace"}.isdisjoint(others)


def test_a_number_that_was_solved_for_is_inferred_with_its_interval(eager: Plan, nodes: dict[str, Seen]) -> None:
    answer = planted_answer(eager, nodes[ROUTER], frozenset([((ROUTER, "renormalize_eps"), 0.37)]))
    value, level, source = rules(answer)["renormalize_eps"]
    assert isinstance(value, float)
    assert math.isclose(value, 0.37, rel_tol=0.1)
    assert level == "inferred"
    (between,) = answer.matches[0].between
    assert f"numbers from {between.least:.7g} to {between.greatest:.7g} were seen to give them too" in source


def test_what_is_open_in_every_layer_by_other_values_is_told(eager: Plan, nodes: dict[str, Seen]) -> None:
    first = ask(eager, nodes[Q_PROJ])
    others = tuple(replace(c, others=("3",)) if c.place.endswith(":splits") else c for c in first.open)
    second = replace(first, node=Q_PROJ.replace("1", "0"), nodes=(Q_PROJ.replace("1", "0"),), open=others)
    second = replace(second, open=tuple(replace(c, place=c.place.replace("[1]", "[0]")) for c in second.open))
    text = on_screen(result(second, first))
    assert "splits 1 or another in each layer" in text
    assert "tensor 1 or 2" in text
