"""Walkers in lockstep: the same bits as alone, each distinct piece of work done once, equal values merged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from moeparity.engine.lockstep import Counts, run
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import MicroBatches
from tests.small_models import Shallow

HERE = Where(Path("test"))
IDS = torch.randint(0, 512, (6, 13), generator=torch.Generator().manual_seed(5))

VARIANTS: list[dict[str, str | float | int]] = [
    {"layers[*].moe.combine:accumulate": "fp32"},
    {"layers[*].moe.combine:weighted": "fp32"},
    {"layers[*].moe.combine:order": "reverse"},
    {"layers[*].moe.combine:leaves": "slot"},
    {"layers[1].moe.router:weights": "fp32"},
    {"layers[0].moe.router:scores": "bf16"},
    {"layers[*].moe.gate:output": "fp32"},
    {"layers[2].attention.norm:normalized": "fp32"},
    {"layers[*].attention.rope:products": "fp32"},
    {"layers[*].attention.attend:implementation": "sdpa"},
    {"layers[-1].moe.experts:implementation": "grouped"},
    {"lm_head:output": "fp32"},
]


@dataclass
class Outputs:
    """Keeps every walker's value of the chosen nodes, all waves together."""

    nodes: tuple[str, ...]
    parts: dict[tuple[str, str], list[torch.Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        if view.node.name in self.nodes:
            for walker in view.outputs:
                self.parts.setdefault((walker, view.node.name), []).append(view.tensor(walker).clone())

    def of(self, walker: str, node: str = "lm_head") -> torch.Tensor:
        return torch.cat(self.parts[walker, node])


@pytest.fixture(scope="module")
def model(qwen3_moe: Path) -> Model:
    return open_model(qwen3_moe, device="cpu", residency="resident")


def plan(model: Model, **settings: str | float) -> Plan:
    return bind(model.graph, load_profile("hf-eager", HERE), "bf16", overrides(settings, HERE))


def walk(model: Model, walkers: Sequence[Walker], *nodes: str, compares: bool = True) -> tuple[Outputs, Counts]:
    outputs = Outputs(nodes=("lm_head", *nodes))
    return outputs, run(walkers, model.weights, IDS, [outputs], compares=compares)


def variants(model: Model, micro_batch: int) -> list[Walker]:
    return [
        Walker(name=f"variant {i}", plan=plan(model, **settings), schedule=MicroBatches(micro_batch))
        for i, settings in enumerate(VARIANTS)
    ]


@pytest.mark.parametrize("micro_batch", [6, 4, 1])
def test_company_changes_no_bit(model: Model, micro_batch: int) -> None:
    reference = Walker(name="reference", plan=plan(model), schedule=MicroBatches(micro_batch))
    others = variants(model, micro_batch)
    together, _ = walk(model, [reference, *others])
    for walker in (reference, *others):
        alone, _ = walk(model, [walker])
        assert same_bits(together.of(walker.name), alone.of(walker.name)), walker.name
    plain = together.of("reference")
    differing = [w.name for w in others if not same_bits(together.of(w.name), plain)]
    assert len(differing) >= 10, "most variants must really differ, or nothing is shown"


@pytest.mark.parametrize(("micro_batch", "waves"), [(6, 1), (4, 2), (1, 6)])
def test_work_before_the_first_difference_is_done_once(model: Model, micro_batch: int, waves: int) -> None:
    orders = ["sequential", "reverse", "fold_hi", "fold_lo"]
    walkers = [
        Walker(
            name=order, plan=plan(model, **{"layers[1].moe.combine:order": order}), schedule=MicroBatches(micro_batch)
        )
        for order in orders
    ]
    outputs, counts = walk(model, walkers)
    names = [node.name for node in model.graph.nodes]
    split = names.index("layers[1].moe.combine")
    assert {name: counts.evaluations[name] for name in names[:split]} == dict.fromkeys(names[:split], waves)
    assert counts.evaluations[names[split]] == len(orders) * waves
    assert all(waves <= counts.evaluations[name] <= len(orders) * waves for name in names[split:])
    assert counts.evaluations["lm_head"] > waves
    assert not same_bits(outputs.of("sequential"), outputs.of("reverse"))


def test_equal_outputs_merge_again(model: Model) -> None:
    # With a bf16 accumulator `native` is sequential: other numerics, the same bits.
    native = plan(model, **{"layers[1].moe.combine:order": "native"})
    walkers = [
        Walker(name="a", plan=plan(model), schedule=MicroBatches(6)),
        Walker(name="b", plan=native, schedule=MicroBatches(6)),
    ]
    outputs, counts = walk(model, walkers)
    expected = dict.fromkeys((node.name for node in model.graph.nodes), 1) | {"layers[1].moe.combine": 2}
    assert counts.evaluations == expected
    assert same_bits(outputs.of("a"), outputs.of("b"))


def test_without_a_comparison_equal_outputs_stay_apart(model: Model) -> None:
    """The same bits; what lies before the first difference is done once all the same."""
    native = plan(model, **{"layers[1].moe.combine:order": "native"})
    walkers = [Walker(name=name, plan=of, schedule=MicroBatches(6)) for name, of in (("a", plan(model)), ("b", native))]
    outputs, counts = walk(model, walkers, compares=False)
    compared, _ = walk(model, walkers)
    names = [node.name for node in model.graph.nodes]
    split = names.index("layers[1].moe.combine")
    assert {counts.evaluations[name] for name in names[:split]} == {1}
    assert {counts.evaluations[name] for name in names[split:]} == {2}
    assert all(same_bits(outputs.of(walker.name), compared.of(walker.name)) for walker in walkers)


def test_an_input_that_is_not_read_is_not_given(model: Model) -> None:
    by_slot = Walker(
        name="slot", plan=plan(model, **{"layers[1].moe.combine:leaves": "slot"}), schedule=MicroBatches(6)
    )
    is_given: dict[str, list[bool]] = {}

    class Inputs:
        def see(self, view: NodeView) -> None:
            if view.node.op.name == "combine":
                is_given[view.node.name] = [blocks is not None for blocks in view.inputs["slot"]]

    run([by_slot], model.weights, IDS, [Inputs()])
    expected = {"layers[0].moe.combine": [True, True, True], "layers[1].moe.combine": [True, False, True]}
    assert {name: is_given[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "qwen3"])
def test_each_micro_batch_gives_what_it_gives_alone(shallow: Shallow, name: str) -> None:
    model = open_model(shallow(name), device="cpu", residency="resident")
    profiles = ("hf-eager", "hf-default")
    plans = {profile: bind(model.graph, load_profile(profile, HERE), "fp32") for profile in profiles}
    walkers = [
        Walker(name=f"{profile} {size}", plan=plans[profile], schedule=MicroBatches(size))
        for profile in profiles
        for size in (1, 2, 3, 4, 6)
    ]
    ids = IDS % model.vocab_size
    together = Outputs(nodes=("lm_head",))
    run(walkers, model.weights, ids, [together])
    for walker in walkers:
        alone = Outputs(nodes=("lm_head",))
        run([walker], model.weights, ids, [alone])
        assert same_bits(together.of(walker.name), alone.of(walker.name)), walker.name


def test_each_micro_batch_has_its_own_part_of_the_mask(model: Model) -> None:
    lengths = torch.tensor([13, 13, 4, 13, 13, 9])
    mask = torch.arange(13) < lengths[:, None]
    walkers = [
        Walker(
            name=f"{kind} {size}",
            plan=plan(model, **{"layers[*].attention.attend:implementation": kind}),
            schedule=MicroBatches(size),
        )
        for kind in ("eager", "sdpa")
        for size in (2, 3, 6)
    ]
    together = Outputs(nodes=("lm_head",))
    run(walkers, model.weights, IDS, [together], attention_mask=mask)
    for walker in walkers:
        parts = []
        size = int(walker.name.split()[-1])
        for ids, part_mask in zip(IDS.split(size), mask.split(size), strict=True):
            alone = Outputs(nodes=("lm_head",))
            run([walker], model.weights, ids, [alone], attention_mask=part_mask)
            parts.append(alone.of(walker.name))
        assert same_bits(together.of(walker.name), torch.cat(parts)), walker.name
    unpadded, _ = walk(model, walkers)
    for walker in walkers:
        assert not same_bits(together.of(walker.name)[2], unpadded.of(walker.name)[2])


@pytest.mark.parametrize("sizes", [(6, 6), (3, 2)], ids=["same batches", "other batches"])
@pytest.mark.parametrize("node", ["layers[1].moe.norm", "layers[2].attention.q_proj", "lm_head"])
def test_a_shadow_computes_on_the_inputs_of_the_other(model: Model, node: str, sizes: tuple[int, int]) -> None:
    settings = {f"{node}:output": "fp32", "layers[0].moe.combine:accumulate": "fp32"}
    walkers = [
        Walker(name="shadow", plan=plan(model, **settings), schedule=MicroBatches(sizes[1]), inputs_of="reference"),
        Walker(name="reference", plan=plan(model), schedule=MicroBatches(sizes[0])),
        Walker(name="candidate", plan=plan(model, **settings), schedule=MicroBatches(sizes[1])),
    ]
    looked_at = next(n for n in model.graph.nodes if n.name == node)
    kernel = looked_at.op.load()
    segment = next(s for s in model.graph.segments if looked_at in s.nodes)
    weights = model.weights.load(segment, ("bf16",))[node, "bf16"]
    float_of = {"bf16": torch.bfloat16, "fp32": torch.float32}
    at = {name: float_of.get(str(value), value) for name, value in plan(model, **settings).active(looked_at).items()}
    checked: list[bool] = []

    class ByHand:
        def see(self, view: NodeView) -> None:
            if view.node is looked_at:
                blocks = view.inputs["reference"][0]
                assert blocks is not None
                x = assemble(blocks, view.batch)
                starts = range(0, len(x), sizes[1])
                expected = [kernel(x[s : s + sizes[1]], w=weights, p=looked_at.params, at=at) for s in starts]
                checked.append(same_bits(view.tensor("shadow"), torch.cat(expected)))

    outputs = Outputs(nodes=(node,))
    run(walkers, model.weights, IDS, [ByHand(), outputs])
    assert checked
    assert all(checked)
    assert not same_bits(outputs.of("shadow", node), outputs.of("candidate", node)), "the candidate's inputs differ"
    assert outputs.of("shadow", node).dtype == torch.float32
    alone, _ = walk(model, walkers[1:2])
    with_shadow, _ = walk(model, walkers)
    assert same_bits(alone.of("reference"), with_shadow.of("reference"))
