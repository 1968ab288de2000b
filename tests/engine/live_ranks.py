"""Gloo ranks that run every case, held to what was simulated before: `python -m tests.engine.live_ranks FILE`.

Rank r of n writes what it found to FILE.n.r as JSON, by case. In a job of eight ranks a placement over two or four of
them runs in groups of the eight.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from moeparity.engine.forward import forward
from moeparity.engine.live_ranks import LiveRanks
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import int_view
from moeparity.ops.kernels.pieces import computing
from moeparity.plan.bind import bind
from moeparity.plan.borders import stage_of
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.spec.variant_schema import Placement
from tests.numerics.collectives.live_gloo import forked
from tests.small_models import SMALL

WORLDS = (2, 4, 8)
LIMIT = timedelta(seconds=60)
GLOO = {"**.reduce:collective": "gloo.all_reduce"}
LOOP = {"**.experts:implementation": "loop"}
DECODE = {"decode": {"from": 4}}
SHAPE = (4, 6)
CHECKPOINTS: Mapping[str, Mapping[str, Any]] = {
    # Heads for eight ranks, of which several hold the same keys; an expert's width leaves each rank five channels.
    "moe": {**SMALL["qwen3_moe"], "num_hidden_layers": 1, "num_attention_heads": 8, "num_experts": 8},
    # Shared experts, whose partial sums wait for those of the routed ones.
    "shared": {**SMALL["glm4_moe"], "num_hidden_layers": 1, "first_k_dense_replace": 0},
    "latent": {**SMALL["deepseek_v3"], "num_hidden_layers": 1, "first_k_dense_replace": 0},
    "stages": {**SMALL["qwen3_moe"], "num_hidden_layers": 4, "num_experts": 4},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant, and the ranks of the job that runs it; `differs`: where gloo adds otherwise than it says."""

    placement: Mapping[str, Any]
    ranks: int = 8
    checkpoint: str = "moe"
    profile: str = "hf-eager"
    dtype: str = "bf16"
    settings: Mapping[str, str] = field(default_factory=lambda: GLOO)
    schedule: Mapping[str, Any] | None = None
    differs: bool = False

    def stages(self, model: Model) -> dict[str, int]:
        """By node, the stage of a pipeline that computes it."""
        where = Where(Path("case"))
        placement = placement_rules(Placement.model_validate(dict(self.placement)), where)
        rules = overrides(self.settings, where)
        plan = bind(model.graph, load_profile(self.profile, where), self.dtype, rules, placement=placement)
        return stage_of(model.graph, plan.settings)

    def values(self, model: Model) -> dict[str, torch.Tensor]:
        """Logits and every value that is whole on each rank."""
        ids = torch.randint(0, 512, SHAPE, generator=torch.Generator().manual_seed(3))
        return forward(
            model,
            ids,
            profile=self.profile,
            dtype=self.dtype,
            placement=self.placement,
            settings=self.settings,
            schedule=self.schedule,
            save=["**.reduce", "**.router", "layers[*].*.residual"],
        )


def _cases() -> dict[str, Case]:
    cases = {}
    for ranks in (2, 4, 8):
        cases[f"tensor {ranks}"] = Case(placement={"tensor": ranks})
        cases[f"tensor {ranks}, decode"] = Case(placement={"tensor": ranks}, ranks=ranks, schedule=DECODE)
    for ranks in (2, 4):
        placement = {"tensor": ranks, "expert": ranks}
        cases[f"expert {ranks}"] = Case(placement=placement)
        cases[f"expert {ranks}, decode"] = Case(placement=placement, ranks=ranks, schedule=DECODE)
    column = {"**.o_proj:parallel": "column", "**.experts:parallel": "column"}
    return cases | {
        "fp32": Case(placement={"tensor": 4}, ranks=4, dtype="fp32"),
        "experts over more ranks than attention": Case(placement={"tensor": 2, "expert": 8}),
        "attention apart": Case(placement={"attention": 2, "tensor": 2, "expert": 4}),
        "attention apart, experts cut": Case(
            # Two ranks have one order, which is also that of `none`, of which no row sees another.
            placement={"attention": 4, "tensor": 2},
            settings={"**.moe.reduce:collective": "gloo.all_reduce"},
        ),
        "attention apart, decode": Case(
            placement={"attention": 2, "tensor": 4, "expert": 8, "gathered": "experts"},
            schedule=DECODE,
        ),
        "sequence": Case(placement={"tensor": 4, "sequence": True}, ranks=4),
        "column": Case(placement={"tensor": 4}, ranks=4, settings=GLOO | column),
        "shared": Case(placement={"tensor": 4}, ranks=4, checkpoint="shared"),
        "latent": Case(placement={"tensor": 4}, ranks=4, checkpoint="latent", schedule=DECODE),
        "pipeline": Case(placement={"pipeline": 2, "tensor": 4}, checkpoint="stages"),
        "pipeline, what is added apart": Case(
            placement={"pipeline": 4, "tensor": 2},
            checkpoint="stages",
            profile="flashinfer-allreduce-norm",
            settings=GLOO | {"**.residual:hands_on": "apart", "**.residual:border": "fp16"} | LOOP,
            schedule=DECODE,
        ),
        "pipeline, attention apart, decode": Case(
            placement={"pipeline": 2, "stages": [1, 3], "attention": 2, "tensor": 2},
            checkpoint="stages",
            schedule=DECODE,
        ),
        "another order": Case(
            placement={"tensor": 4}, ranks=4, settings={"**.reduce:collective": "nccl.ring"}, differs=True
        ),
    }


CASES = _cases()


def run(live: LiveRanks, case: Case, model: Model, simulated: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The values that differ, how many there were, the reductions, and how many values another rank sent this one."""
    received, whole = [], dist.recv

    def recv(buffer: torch.Tensor, source: int) -> None:
        received.append(source)
        whole(buffer, source)

    with computing(live), patch.object(dist, "recv", recv):
        real = case.values(model)
    unequal = [
        name
        for name, value in simulated.items()
        if value.dtype != real[name].dtype or not torch.equal(int_view(value), int_view(real[name]))
    ]
    reductions = [{**asdict(reduction), "orders": sorted(reduction.orders)} for reduction in live.take()]
    return {"unequal": unequal, "values": len(simulated), "reductions": reductions, "received": received}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What ranks need of a case and all of them would work out alike: its stages, and the values they are held to."""

    stages: dict[str, int]
    values: dict[str, torch.Tensor]


def work(rank: int, world: int, out: Path, models: Mapping[str, Model], simulations: Mapping[str, Simulation]) -> None:
    """One rank, in the cases of jobs of so many."""
    dist.init_process_group("gloo", f"file://{out}.{world}.store", rank=rank, world_size=world, timeout=LIMIT)
    # Ranks connect all their groups to one another: once for all cases that have the same stages.
    live: dict[str, LiveRanks] = {}
    outcomes = {}
    for name, simulation in simulations.items():
        case = CASES[name]
        if case.ranks != world:
            continue
        stages = json.dumps(simulation.stages)
        if stages not in live:
            live[stages] = LiveRanks(simulation.stages)
        outcomes[name] = run(live[stages], case, models[case.checkpoint], simulation.values)
    Path(f"{out}.{world}.{rank}").write_text(json.dumps(outcomes))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """The ranks are forks of one process that has imported and opened all that they need."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    models = {}
    for name, fields in CHECKPOINTS.items():
        folder = out.parent / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**fields, "torch_dtype": "bfloat16"}))
        models[name] = open_model(folder, device="cpu", synthetic=5, residency="resident")
    simulations = {
        name: Simulation(stages=case.stages(models[case.checkpoint]), values=case.values(models[case.checkpoint]))
        for name, case in CASES.items()
    }
    return max(
        forked(world, partial(work, world=world, out=out, models=models, simulations=simulations)) for world in WORLDS
    )


if __name__ == "__main__":
    sys.exit(main())
