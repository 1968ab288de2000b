"""Choices behind recorded values: found in combinations, told with what the values leave open, or said to be none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moeparity.engine.computation import CallInputs, op_numerics
from moeparity.errors import TraceError
from moeparity.evidence.explain import inquiry as inquiry_module
from moeparity.evidence.explain.observation import Observation, region_of
from moeparity.evidence.explain.report import Explanation, is_near
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases
from moeparity.plan.setting import Setting
from tests.evidence.explain.observed import Seen, bound, drawn, explain, kernels_of, opened, planted, rules, seen_under

ATTEND, NORM, ROUTER = "layers[1].attention.attend", "layers[1].moe.norm", "layers[1].moe.router"
EXPERTS, COMBINE, CACHE = "layers[1].moe.experts", "layers[1].moe.combine", "layers[1].attention.cache"


@pytest.fixture
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no choice gives is searched for to the end: a sixteenth of it shows that."""
    monkeypatch.setattr(inquiry_module, "WORK", 1024)


def ask(plan: Plan, node_values: Seen, *observations: Observation) -> Explanation:
    with torch.inference_mode():
        return explain(plan, node_values.node.name, observations, node_values.loaded)


def recomputed(plan: Plan, node_values: Seen, answer: Explanation) -> tuple[torch.Tensor, ...]:
    """The node under the settings that an answer states, by no way of the search's."""
    places = {tuple(address.rsplit(":", 1)): value for address, value in answer.settings}
    by_choice = {
        tuple(choice.partition("=")[0].rsplit(":", 1)): choice.partition("=")[2] for choice in _choices(answer)
    }
    settings = {(name, key): Setting(value=number(v), rule=None) for (name, key), v in {**by_choice, **places}.items()}
    with_choices = in_all_phases(
        plan, {place: setting for place, setting in settings.items() if place in plan.settings}
    )
    params = {place[1]: number(value) for place, value in by_choice.items() if place not in plan.settings}
    node = replace(node_values.node, params={**node_values.node.params, **params})
    reads = [
        None if name is None else node_values.values.get(name) for name in with_choices.read_inputs(node_values.node)
    ]
    call_inputs = CallInputs(tensors=reads, loaded=node_values.loaded, size=(2, 24))
    return op_numerics(with_choices, node, {}).compute(call_inputs)


def _choices(answer: Explanation) -> tuple[str, ...]:
    return answer.matches[0].choices if answer.matches else ()


def number(value: str) -> str | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


@pytest.mark.parametrize("name", [NORM, ROUTER, EXPERTS, COMBINE, ATTEND, "layers[1].attention.rope", "embed"])
def test_what_the_profile_computes_is_explained_by_it_and_nothing_else_is_named(
    eager: Plan, nodes: dict[str, Seen], name: str
) -> None:
    answer = ask(eager, nodes[name], Observation(values=nodes[name].values))
    assert answer.explained
    assert answer.as_started
    assert answer.matches == ()
    assert answer.as_it_is == 1
    assert answer.tried == 0


@pytest.mark.parametrize(("name", "count"), [(NORM, 3), (ROUTER, 3), (COMBINE, 3), (COMBINE, 4), (CACHE, 3)])
def test_choices_that_were_drawn_are_found_together(eager: Plan, nodes: dict[str, Seen], name: str, count: int) -> None:
    """Each of them changes some bit beside the others. What is told gives the same bits, with no more choices."""
    choices = drawn(eager, nodes[name], count, f"{name}{count}")
    assert choices is not None
    observation, outputs = planted(eager, nodes[name], choices) or pytest.fail("drawn choices run")
    answer = ask(eager, nodes[name], observation)
    assert answer.explained, choices
    assert not answer.as_started
    assert len(answer.matches[0].choices) <= count
    assert all(map(same_bits, recomputed(eager, nodes[name], answer), outputs))


PROFILES = ("hf-default", "vllm", "sglang", "oracle")


@pytest.mark.parametrize("profile", PROFILES)
def test_values_made_under_a_profile_give_it_back(model: Model, eager: Plan, profile: str) -> None:
    """What each node of a layer computes: the values with the answer are the same; each of the profile's own choices is
    in the answer or listed as doing as well; and nothing is verified that the profile has otherwise.
    """
    plan, count = bound(model, profile), 0
    for name, node_values in seen_under(model, plan).items():
        if node_values.node.layer not in {None, 1}:
            continue
        answer = ask(eager, node_values, Observation(values=node_values.values))
        assert answer.explained, (name, answer)
        outputs = [node_values.values[value] for value in node_values.node.values]
        assert all(map(same_bits, recomputed(eager, node_values, answer), outputs)), name
        missing = not_named(plan, node_values, answer)
        assert missing == {}, (profile, name, answer.matches, answer.open)
        active = {key: str(value) for key, value in plan.active(node_values.node).items()}
        stated = rules(answer) if has_profile(answer) else {}
        verified = {key: str(value) for key, (value, level, _) in stated.items() if level == "verified: trace"}
        count += len(verified)
        others = {key: value for key, value in verified.items() if active.get(key, value) != value}
        assert others == {}, (profile, name, answer.matches)
    assert count > 20


def has_profile(answer: Explanation) -> bool:
    """Whether a profile can state an answer: it has no fault, and no choice of a node that is not computed anew."""
    addresses = {address for address, _ in answer.settings}
    return not answer.matches or {text.partition("=")[0] for text in answer.matches[0].choices} <= addresses


def not_named(plan: Plan, node_values: Seen, answer: Explanation) -> dict[str, str]:
    """The choices in effect of a plan at a node that an answer neither states, nor lists among what does as well."""
    values_named = {address.rpartition(":")[2]: {value} for address, value in answer.settings}
    for choice in answer.open:
        values_named.setdefault(choice.place.rpartition(":")[2], set()).update(choice.others)
    for match in answer.matches:
        for text in match.choices:
            key, _, value = text.rpartition(":")[2].partition("=")
            values_named.setdefault(key, set()).add(value)
    active = {key: str(value) for key, value in plan.active(node_values.node).items()}
    return {key: value for key, value in active.items() if value not in values_named.get(key, set())}


def nearest_share(answer: Explanation) -> float:
    """The share of equal elements of what is called nearest: the first match where it is near, or the plan itself."""
    equal = (match.equal for match in answer.matches[:1])
    return max(answer.as_it_is, *(share for share in equal if is_near(share, answer.as_it_is)), 0.0)


@pytest.mark.usefixtures("_brief")
def test_a_function_that_nobody_lists_is_said_to_be_none(eager: Plan, nodes: dict[str, Seen]) -> None:
    """Rows divided by the mean of their magnitudes: no rounding, order or form of a norm does that."""
    node_values = nodes[NORM]
    x = node_values.values[node_values.node.inputs[0]].float()
    value = (x / (x.abs().mean(-1, keepdim=True) + 1e-6)).bfloat16()
    answer = ask(eager, node_values, Observation(values={**node_values.values, NORM: value}))
    assert not answer.explained
    assert not any(match.exact for match in answer.matches)
    assert answer.tried > 200
    assert answer.left is not None
    assert answer.left.differing > 0.5
    assert answer.left.differing == pytest.approx(1 - nearest_share(answer))
    assert answer.left.outside is not None
    assert answer.left.beyond_orders


@pytest.mark.usefixtures("_brief")
def test_another_order_that_is_not_listed_lies_inside_the_legal_ones(eager: Plan, nodes: dict[str, Seen]) -> None:
    """A sum of squares in an order drawn at random: it is not found, and what is left is what orders make."""
    node_values, wide = nodes[NORM], {"normalized": "fp32", "output": "fp32"}
    settings = {(NORM, key): Setting(value=value, rule=None) for key, value in wide.items()}
    plan = in_all_phases(eager, {**settings, (NORM, "order"): Setting(value="unordered(77)", rule=None)})
    kernels, observation = kernels_of(plan, node_values)
    (value,) = kernels.outputs(frozenset(), observation.sample(kernels.replaced.nodes)) or pytest.fail("it runs")
    answer = ask(in_all_phases(eager, settings), node_values, Observation(values={**node_values.values, NORM: value}))
    assert not answer.explained
    assert answer.left is not None
    assert 0 < answer.left.differing < 1
    assert answer.left.differing == pytest.approx(1 - nearest_share(answer))
    assert answer.left.furthest < 10
    assert answer.left.outside is not None
    assert not answer.left.beyond_orders


def test_what_the_values_leave_open_is_told(eager: Plan, nodes: dict[str, Seen]) -> None:
    """Of a single token with one expert, no order of the sum over slots can be known, nor whether a store cuts what is
    bf16 already.
    """
    node_values = nodes[COMBINE]
    answer = ask(eager, node_values, Observation(values=node_values.values))
    assert {choice.place for choice in answer.open} == {f"{COMBINE}:order", f"{COMBINE}:output"}
    assert next(choice for choice in answer.open if choice.place == f"{COMBINE}:output").others == ("bf16_rz",)
    zeros = {name: torch.zeros_like(x) if x.is_floating_point() else x for name, x in node_values.values.items()}
    nothing = ask(eager, node_values, Observation(values=zeros))
    assert nothing.explained
    decided = {choice.place for choice in nothing.open}
    assert {f"{COMBINE}:order", f"{COMBINE}:accumulate", f"{COMBINE}:leaves", f"{COMBINE}:weighted"} <= decided


@pytest.mark.usefixtures("_brief")
def test_every_micro_batch_counts(eager: Plan, nodes: dict[str, Seen], model: Model) -> None:
    """What explains the first alone is no answer where a later one has other bits."""
    node_values = nodes[NORM]
    node_values_b = seen_under(model, eager, seed=2)[NORM]
    wide, _ = planted(eager, node_values, frozenset([((NORM, "normalized"), "fp32")])) or pytest.fail("it runs")
    choices = frozenset([((NORM, "normalized"), "fp32"), ((NORM, "square"), "bf16")])
    wider, _ = planted(eager, node_values_b, choices) or pytest.fail("it runs")
    answer = ask(eager, node_values, wide, wider)
    assert not answer.explained
    answer_of_first = ask(eager, node_values, wide)
    assert answer_of_first.matches[0].choices == (f"{NORM}:normalized=fp32",)


def test_what_another_node_chose_is_tried_where_it_is_told_of_it(
    model: Model, eager: Plan, nodes: dict[str, Seen]
) -> None:
    """The rows have met their weights in the experts: the combine does not multiply again, and says why."""
    place = ("layers[1].moe.experts", "score_site")
    scored = in_all_phases(eager, {place: Setting(value="epilogue", rule=None)})
    node_values = seen_under(model, scored)[COMBINE]
    values = {**nodes[COMBINE].values, **node_values.values}
    answer = ask(eager, nodes[COMBINE], Observation(values=values))
    assert f"{place[0]}:score_site=epilogue" in answer.matches[0].choices


def test_values_between_are_computed_anew_where_they_were_not_recorded(eager: Plan, nodes: dict[str, Seen]) -> None:
    values = {**nodes[EXPERTS].values, **nodes[COMBINE].values}
    del values[EXPERTS]
    answer = ask(eager, nodes[COMBINE], Observation(values=values))
    assert answer.nodes == (EXPERTS, COMBINE)
    assert answer.as_started


@pytest.mark.parametrize(
    ("names_kept", "missing"), [((EXPERTS,), COMBINE), ((COMBINE,), "layers[0].moe.residual"), ((), COMBINE)]
)
def test_what_is_missing_is_named(
    eager: Plan, nodes: dict[str, Seen], names_kept: tuple[str, ...], missing: str
) -> None:
    values = {name: nodes[COMBINE].values[name] for name in names_kept}
    with pytest.raises(TraceError, match="the trace has no whole") as error:
        ask(eager, nodes[COMBINE], Observation(values=values))
    assert missing in str(error.value)


def test_a_region_stays_in_its_segment(eager: Plan) -> None:
    region = region_of(eager, COMBINE, {COMBINE, "layers[1].attention.residual"})
    assert [node.name.rpartition(".")[2] for node in region] == ["norm", "gate", "router", "experts", "combine"]


def test_what_a_node_reads_under_the_plan_belongs_to_its_region(glm4_moe: Path) -> None:
    """A sum reads the shared expert's output only where the combine has not added it, which hf-eager's has not."""
    plan = bound(opened(glm4_moe), "hf-eager")
    at = "layers[1].moe"
    shown = {f"{at}.combine", f"{at}.shared_down_proj", f"{at}.reduce"}
    region = [node.name.rpartition(".")[2] for node in region_of(plan, f"{at}.reduce", shown)]
    assert region == ["shared_reduce", "combine_reduce", "shared_add", "reduce"]
