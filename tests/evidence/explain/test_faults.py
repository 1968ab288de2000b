"""Faults at recorded nodes are told by name: alone, two at one node, and beside choices of numerics."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.evidence.explain.faults import PLANTED, fault_places, place_of, suspects_of
from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.plainness import in_words
from moeparity.evidence.explain.replaced import Choice
from moeparity.inputs.model import open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.ops.attribute import Value
from moeparity.plan.bound import Plan
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.faults.reader import shipped_faults
from tests.checkpoint_factory import FILE
from tests.evidence.explain.observed import Seen, bound, explain, planted, seen_under

LAYER = "layers[1]."
NORM, ROUTER, EXPERTS = f"{LAYER}moe.norm", f"{LAYER}moe.router", f"{LAYER}moe.experts"
ATTEND, OUT, ROPE = f"{LAYER}attention.attend", f"{LAYER}attention.o_proj", f"{LAYER}attention.rope"
EXPERT, OTHER = 7, 9
"""Experts that some of the tokens go to."""


def fault(name: str, number: float | None = None, **values: Value) -> tuple[str, dict[str, Value], Value]:
    return name, values, PLANTED if number is None else number


def choice(node: Seen, planting: tuple[str, dict[str, Value], Value] | tuple[str, Value]) -> Choice:
    if len(planting) == 2:
        return (node.node.name, planting[0]), planting[1]
    name, values, number = planting
    return place_of(node.node, shipped_faults()[name], values), number


@pytest.mark.parametrize(
    ("node", "plantings"),
    [
        ("rotary", [fault("rotary-width", width=16)]),
        (ROPE, [fault("rope-width", width=16)]),
        (ATTEND, [fault("softmax-scale", 0.5)]),
        (ATTEND, [fault("softmax-scale-missing")]),
        (ATTEND, [fault("softmax-scale-of-another-width", width=48), ("scores", "fp32")]),
        (ATTEND, [fault("window", window=4), fault("causal-shifted", ahead=-1)]),
        (ATTEND, [fault("causal-shifted", ahead=1), ("scores", "fp32"), ("probabilities", "fp32")]),
        (NORM, [fault("norm-twice"), fault("weights-scaled", 2.0)]),
        (NORM, [("eps", 0.25), ("offset", -0.5), ("square", "bf16"), ("normalized", "fp32")]),
        (OUT, [fault("weights-of-another-layer", layer=2), fault("weights-scaled", 0.5)]),
        (ROUTER, [fault("renormalisation"), fault("capacity-drop", capacity=4)]),
        (EXPERTS, [fault("expert-scaled", 1.25, part="gate and up", expert=EXPERT)]),
        (EXPERTS, [fault("expert-scaled", 1.125, part="up", expert=EXPERT)]),
        (EXPERTS, [fault("expert-gate-and-up-exchanged", expert=EXPERT)]),
        (EXPERTS, [fault("experts-exchanged", part="down", expert=EXPERT, other=OTHER)]),
        ("lm_head", [fault("head-tied")]),
        (EXPERTS, [fault("expert-zeroed", expert=EXPERT), fault("expert-zeroed", expert=OTHER)]),
    ],
    ids=str,
)
def test_what_was_planted_is_named(
    eager: Plan, nodes: dict[str, Seen], node: str, plantings: list[tuple[str, Value]]
) -> None:
    """By one of the answers that give every bit, in the words that recipes have for it."""
    traced = nodes[node]
    choices = frozenset(choice(traced, planting) for planting in plantings)
    observation, _ = planted(eager, traced, choices) or pytest.fail("it runs")
    with torch.inference_mode():
        answer = explain(eager, node, [observation], traced.loaded)
    assert answer.explained, answer.matches
    words = {*in_words([traced.node], choices)}
    assert words in [{*match.choices} for match in answer.matches], answer.matches


def test_of_two_experts_the_second_takes_what_the_first_does_not() -> None:
    """Expert 1 is far off in most tokens; 4 in the one more that is; 2 only where 1 is too."""
    ids = torch.tensor([[[0, 1], [1, 2], [3, 1], [0, 3], [0, 4], [3, 0], [0, 3], [3, 0]]])
    base = torch.randn(1, 8, 4, generator=torch.Generator().manual_seed(0)).double()
    recorded = base.clone()
    recorded[:, [0, 1, 2, 4]] *= 2
    assert suspects_of(recorded, base, ids) == (1, 4)


@pytest.mark.parametrize("node", [EXPERTS, OUT])
def test_weights_of_an_earlier_step_are_named_where_that_is_given(
    eager: Plan, nodes: dict[str, Seen], node: str, qwen3_moe: Path, tmp_path: Path
) -> None:
    """With nothing, or a checkpoint of another step, nothing is named."""
    folders = []
    for seed in (1, 2):
        folders.append(shutil.copytree(qwen3_moe, tmp_path / f"step-{seed}"))
        random = torch.Generator().manual_seed(seed)
        tensors = {name: tensor.clone() for name, tensor in load_file(qwen3_moe / FILE).items()}
        for tensor in tensors.values():
            tensor.add_((0.05 * torch.randn(tensor.shape, generator=random)).to(tensor.dtype))
        save_file(tensors, folders[-1] / FILE, {"format": "pt"})
    stale = choice(nodes[node], fault("weights-of-another-checkpoint", checkpoint=str(folders[0])))
    observation, _ = planted(eager, nodes[node], frozenset([stale])) or pytest.fail("it runs")
    with torch.inference_mode():
        for earlier, is_named in ((folders[1:], False), (folders, True)):
            memory = Memory(work=2048, checkpoints=tuple(map(str, earlier)))
            answer = explain(eager, node, [observation], nodes[node].loaded, memory)
            assert answer.explained is is_named, answer.matches


def test_the_other_of_two_exchanged_experts_need_not_be_suspected(eager: Plan, nodes: dict[str, Seen]) -> None:
    """It may have no tokens. Two that are suspected are named once, and none with itself."""

    def places(*suspects: int) -> list[str]:
        every = fault_places(eager.graph, nodes[EXPERTS].node, suspects)
        return [name for (_, name), _ in every if name.startswith("fault experts-exchanged(expert")]

    experts = [expert for expert in range(experts_of(nodes[EXPERTS].node)) if expert != EXPERT]
    assert places(EXPERT) == [f"fault experts-exchanged(expert={EXPERT}, other={expert})" for expert in experts]
    assert places(EXPERT, OTHER).count(f"fault experts-exchanged(expert={EXPERT}, other={OTHER})") == 1
    assert f"fault experts-exchanged(expert={OTHER}, other={EXPERT})" not in places(EXPERT, OTHER)


def test_an_expert_that_most_tokens_go_to_is_suspected_where_others_are_equal() -> None:
    """Expert 2 is wrong in six rows of seven, in some by little: no share of the rows is near but the equal one."""
    ids = torch.tensor([[[2, 0], [2, 1], [3, 2], [0, 2], [2, 3], [1, 2], [0, 1]]])
    base = torch.randn(1, 7, 4, generator=torch.Generator().manual_seed(0)).double()
    recorded = base * torch.tensor([1.01, 1.02, 1.05, 1.1, 1.5, 2.0, 1.0]).double()[None, :, None]
    assert suspects_of(recorded, base, ids)[-1] == 2


@pytest.mark.parametrize("slots", [True, False], ids=["a row for each slot", "a row of each token"])
def test_an_expert_is_suspected_by_its_tokens(slots: bool) -> None:
    """Of all rows those of one expert are far off, and others are rounded; of no row nobody is suspected."""
    ids = torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 0], [1, 3], [0, 2], [2, 0], [3, 2]]])
    base = torch.randn(*ids.shape, 4, generator=torch.Generator().manual_seed(0)).double()
    recorded = base * (1 + 2**-10)
    recorded[ids == 1] *= 1.5
    if not slots:
        base, recorded = base.sum(2), recorded.sum(2)
    assert suspects_of(recorded, base, ids) == (1,)
    assert suspects_of(base, base, ids) == ()
    assert suspects_of(base[:, :0], base[:, :0], ids[:, :0]) == ()
    assert suspects_of(recorded[..., :-1, :], base[..., :-1, :], ids) == ()


GATE = f"{LAYER}moe.gate"
OF_SCALES = [
    *((OUT, fault(f"scales-{name}")) for name in ("transposed", "of-another-block", "twice", "inverted", "missing")),
    (OUT, fault("scales-of-another-layer", layer=0)),
    (OUT, fault("scales-of-another-size", size=32)),
    (EXPERTS, fault("scales-twice", part="gate and up")),
    (EXPERTS, fault("scales-of-another-block", part="down")),
    (GATE, fault("skip-list-ignored", block=128)),
]


@pytest.fixture(scope="module")
def in_fp8(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, dict[str, Seen]]:
    """The model quantised in blocks that are fewer across than down, or not, and what its nodes were given."""
    folder = tmp_path_factory.mktemp("fp8") / "model"
    quantise(qwen3_moe, FORMATS["fp8-blocks"], folder, 16)
    model = open_model(folder, device="cpu")
    plan = bound(model, "hf-eager")
    return plan, seen_under(model, plan)


@pytest.mark.parametrize(("node", "planting"), OF_SCALES, ids=str)
def test_faults_of_quantised_weights_are_named(
    in_fp8: tuple[Plan, dict[str, Seen]], node: str, planting: tuple[str, dict[str, Value], Value]
) -> None:
    plan, nodes = in_fp8
    choices = frozenset([choice(nodes[node], planting)])
    observation, _ = planted(plan, nodes[node], choices) or pytest.fail("it runs")
    with torch.inference_mode():
        answer = explain(plan, node, [observation], nodes[node].loaded)
    assert answer.explained, answer.matches
    words = {*in_words([nodes[node].node], choices)}
    assert words in [{*match.choices} for match in answer.matches], answer.matches
