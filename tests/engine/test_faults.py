"""A fault that is planted in a plan gives the bits of the plain plan on what the fault makes of the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from moeparity.plan.faults.reader import shipped_faults
from tests.checkpoint_factory import FILE, make_small
from tests.engine.faulty import Values, fault, plan_of, walk
from tests.engine.rewritten_checkpoints import BLOCK, CASES, IN_FP8, IN_NVFP4, Case
from tests.engine.test_faults_at_nodes import TESTED
from tests.opened import opened
from tests.planted.places import random_tokens

Checkpoints = Callable[[str], Path]
IDS = random_tokens(2, 11, vocab=300)
FORMS = {IN_FP8: "fp8-blocks", IN_NVFP4: "nvfp4-packed"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Small checkpoints by name."""
    folders: dict[str, Path] = {}

    def checkpoint(name: str) -> Path:
        form = next((form for ending, form in FORMS.items() if name.endswith(ending)), None)
        if form is not None:
            folder = tmp_path_factory.mktemp(name) / "model"
            quantise(checkpoint(name.rpartition("_in_")[0]), FORMATS[form], folder, BLOCK)
            folders[name] = folder
        elif name not in folders:
            folders[name] = make_small(name, tmp_path_factory.mktemp(name))
        return folders[name]

    return checkpoint


def other_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of another checkpoint of the same model: each number a little larger."""
    return {name: (x.float() * 1.01 + 0.001).to(x.dtype) for name, x in tensors.items()}


def written(folder: Path, tensors: dict[str, Tensor], config: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / FILE)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def written_by_hand(case: Case, checkpoint: Path, folder: Path, others: dict[str, Tensor]) -> Model:
    tensors = load_file(checkpoint / FILE)
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    case.by_hand(tensors, config, others)
    return open_model(written(folder / "by hand", tensors, config), device="cpu", values=False)


def different(values: Values, others: Values) -> list[str]:
    return [name for name in values if not same_bits(values[name], others[name])]


@dataclass(frozen=True, kw_only=True)
class Walked:
    """All cases of one checkpoint, run beside a fresh walker in one pass; `others` are another checkpoint's tensors."""

    values: dict[str, Values]
    others: dict[str, Tensor]


@pytest.fixture(scope="module")
def walked(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Walked]:
    passes: dict[str, Walked] = {}

    def of(name: str) -> Walked:
        if name not in passes:
            model, folder = opened(checkpoints(name)), tmp_path_factory.mktemp("other")
            others = other_tensors(load_file(checkpoints(name) / FILE))
            written(folder, others, json.loads((checkpoints(name) / "config.json").read_text("utf-8")))
            plans = {"fresh": plan_of(model)}
            for i, case in enumerate(CASES):
                if name in case.models:
                    values = {k: str(folder) if k == "checkpoint" else value for k, value in case.values.items()}
                    plans[str(i)] = plan_of(model, [fault(case.name, case.nodes, case.layers, values)])
            passes[name] = Walked(values=walk(model, plans, IDS)[0], others=others)
        return passes[name]

    return of


@pytest.mark.parametrize(
    ("number", "name"),
    [pytest.param(i, name, id=f"{i}-{case.name}-{name}") for i, case in enumerate(CASES) for name in case.models],
)
def test_a_fault_is_what_it_makes_of_the_checkpoint(
    number: int, name: str, tmp_path: Path, checkpoints: Checkpoints, walked: Callable[[str], Walked]
) -> None:
    case, beside = CASES[number], walked(name)
    plain = written_by_hand(case, checkpoints(name), tmp_path, beside.others)
    expected = walk(plain, {"plain": plan_of(plain)}, IDS)[0]["plain"]
    assert [node for node in different(beside.values[str(number)], expected) if node not in case.aside] == []
    assert different(beside.values["fresh"], expected), "the fault does nothing"


@pytest.mark.parametrize("name", sorted({name for case in CASES for name in case.models}))
def test_a_fresh_walker_beside_faulty_ones_computes_what_it_does_alone(
    name: str, checkpoints: Checkpoints, walked: Callable[[str], Walked]
) -> None:
    model = opened(checkpoints(name))
    alone = walk(model, {"alone": plan_of(model)}, IDS)[0]["alone"]
    assert different(walked(name).values["fresh"], alone) == []


def test_one_fault_stands_at_a_node_with_two_values(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Two experts are scaled by two factors, and one of them twice."""
    model, node = opened(checkpoints("qwen3_moe")), "layers[1].moe.experts"
    values = [{"expert": 3, "factor": 0.75}, {"expert": 5, "factor": 1.5}, {"expert": 3, "factor": 2.0}]
    plan = plan_of(model, [fault("expert-scaled", node, values=each) for each in values])

    def by_hand(tensors: dict[str, Tensor], *_: object) -> None:
        for name, tensor in list(tensors.items()):
            if name.partition("layers.1.mlp.experts.")[2].partition(".")[0] in {"3", "5"}:
                tensors[name] = tensor * 1.5

    case = Case(name="expert-scaled", models=("qwen3_moe",), by_hand=by_hand)
    plain = written_by_hand(case, checkpoints("qwen3_moe"), tmp_path, {})
    expected = walk(plain, {"plain": plan_of(plain)}, IDS)[0]["plain"]
    assert different(walk(model, {"faulty": plan}, IDS)[0]["faulty"], expected) == []


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("expert-zeroed", {"expert": 3}, {"expert": 3}),
        ("expert-of-another-expert", {"expert": 3, "other": 5}, {"expert": 3, "other": 6}),
    ],
)
def test_a_fault_that_does_nothing_beside_itself_is_refused(
    checkpoints: Checkpoints, name: str, first: dict[str, object], second: dict[str, object]
) -> None:
    node = "layers[1].moe.experts"
    with pytest.raises(SpecError, match=f"fault {name}.* stands there too, and both together are what one of them is"):
        plan_of(opened(checkpoints("qwen3_moe")), [fault(name, node, values=each) for each in (first, second)])


def test_a_stale_weight_beside_a_fresh_walker_shares_nothing(checkpoints: Checkpoints) -> None:
    model = opened(checkpoints("qwen3_moe"))
    node = "layers[1].attention.o_proj"
    stale = plan_of(model, [fault("weights-of-another-layer", node, values={"layer": 2})])
    again = plan_of(model, [fault("weights-of-another-layer", node, values={"layer": 2})])
    other_plan = plan_of(model, [fault("weights-of-another-layer", node, values={"layer": 0})])
    walked, counts = walk(model, {"fresh": plan_of(model), "stale": stale, "again": again, "other": other_plan}, IDS)
    assert counts.evaluations[node] == 3
    assert counts.evaluations["layers[1].attention.attend"] == 1
    values = [walked[name][node] for name in ("fresh", "stale", "other")]
    assert not any(same_bits(a, b) for i, a in enumerate(values) for b in values[:i])
    assert different(walked["again"], walked["stale"]) == []


def test_another_parameter_beside_a_fresh_walker_shares_nothing(checkpoints: Checkpoints) -> None:
    model = opened(checkpoints("qwen3_moe"))
    node = "layers[1].attention.norm"
    plans = {str(eps): plan_of(model, [fault("norm-eps", node, values={"eps": eps})]) for eps in (0.5, 0.25)}
    walked, counts = walk(model, {"fresh": plan_of(model), **plans}, IDS)
    assert counts.evaluations[node] == 3
    assert not same_bits(walked["0.5"][node], walked["0.25"][node])


def test_streamed_weights_are_rewritten_as_resident_ones(checkpoints: Checkpoints) -> None:
    folder = checkpoints("qwen3_moe")
    faults = [
        fault("expert-scaled", layers=[1], values={"expert": 2, "factor": 0.5}),
        fault("gate-and-up-exchanged", layers=[2]),
    ]
    resident, streamed = opened(folder), open_model(folder, device="cpu")
    values = [walk(model, {"x": plan_of(model, faults)}, IDS)[0]["x"] for model in (resident, streamed)]
    assert different(*values) == []


def test_rewritten_weights_go_with_the_pass(checkpoints: Checkpoints) -> None:
    """A store that holds all weights holds none that a fault has made."""
    model = open_model(checkpoints("qwen3_moe"), device="cpu", residency="resident")
    faults = [fault("expert-scaled", layers=[1], values={"expert": 2, "factor": 0.5})]
    walk(model, {"x": plan_of(model, faults)}, IDS)
    before = model.weights.bytes_read
    fresh = walk(model, {"x": plan_of(model)}, IDS)[0]["x"]
    assert model.weights.bytes_read == before
    walk(model, {"x": plan_of(model, faults)}, IDS)
    assert model.weights.bytes_read > before
    assert different(fresh, walk(model, {"x": plan_of(model)}, IDS)[0]["x"]) == []


def test_two_faults_at_one_node_are_applied_in_order(checkpoints: Checkpoints) -> None:
    model = opened(checkpoints("qwen3_moe"))
    node = "layers[1].moe.experts"
    plants = [
        fault("expert-of-another-expert", node, values={"expert": 3, "other": 5}),
        fault("expert-scaled", node, values={"expert": 5, "factor": 2}),
    ]
    experts = next(n for n in model.graph.nodes if n.name == node)
    weights, own_weights = (model.weights.node(n, "bf16") for n in (plan_of(model, plants).as_run(experts), experts))
    assert torch.equal(weights["down"][3], own_weights["down"][5])
    assert torch.equal(weights["down"][5], own_weights["down"][5] * 2)


def test_every_fault_is_planted_here_or_at_a_node() -> None:
    assert shipped_faults().keys() == {case.name for case in CASES} | TESTED


@pytest.mark.parametrize("name", sorted(shipped_faults()))
def test_every_fault_says_where_it_is_known_from_or_that_nothing_was_found(name: str) -> None:
    spec = shipped_faults()[name].spec
    assert "known_from" in spec.model_fields_set
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source.where) and source.says for source in spec.known_from)
