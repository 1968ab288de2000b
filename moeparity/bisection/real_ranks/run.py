"""Runs each side twice: in one pass on simulated ranks, and in one on the ranks of a live job, in all its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from moeparity.bisection.real_ranks.data import RealRanks, SideOnRanks, Site
from moeparity.bisection.real_ranks.show import real_ranks_reading
from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.engine.live_ranks import LiveRanks, Reduction
from moeparity.engine.values import Block
from moeparity.engine.view import NodeView
from moeparity.errors import SpecError, Where
from moeparity.numerics.dtypes import torch_dtype
from moeparity.ops.kernels.pieces import computing
from moeparity.ops.placement import NONE
from moeparity.plan.address import role
from moeparity.plan.attention_groups import computed_apart
from moeparity.plan.borders import ends, stage_of
from moeparity.plan.bound import Plan
from moeparity.plan.sides import Side
from moeparity.probe.collective import COLLECTIVES, in_job
from moeparity.probe.find import probe
from moeparity.probe.live_all_reduce import process_groups, start
from moeparity.progress import Callback
from moeparity.ranks import Guard

_CUT = ("tensor", "expert")


@contextmanager
def job(device: str) -> Iterator[None]:
    """A context in which this process has joined the job that torchrun started. Raises MoeparityError without
    torchrun.
    """
    with process_groups():
        on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        start("--ranks real", "bisect RECIPE --ranks real", on_gpu=on_gpu)
        yield


def on_real_ranks(study: Study, progress: Callback | None = None) -> RealRanks:
    """Run both sides, if they are spread over ranks, on the ranks of the job that this process has joined. All
    processes of the job call this, and get the same result.

    Raises SpecError if the job's number of processes is not the plan's number of ranks, RankError if its ranks are not
    in step, and MoeparityError for a job of one process or a side that cannot be run.
    """
    study.refuse_recorded("--ranks real")
    sides = {name: side for name, side in study.sides.items() if ranks_of(side) > 1}
    _refuse_world(study, {name: ranks_of(side) for name, side in sides.items()})
    # A pass draws from generators of its own, so the states of torch's, which nobody seeded, have no effect.
    with Guard(extra={"recipe": str(study.recipe)}, rng="broadcast") as guard:
        results = []
        for name, side in sides.items():
            with guard.call(action=name):
                results.append(_side(study, name, side, progress))
        with guard.call(action="probe"):
            results = _identified(results)
    result = RealRanks(backend=str(dist.get_backend()), processes=dist.get_world_size(), sides=tuple(results))
    return replace(result, reading=real_ranks_reading(result))


def ranks_of(side: Side) -> int:
    """Over how many ranks a side is spread.

    It is the largest number over which any node is cut, in any phase. For groups that attend apart it counts the ranks
    of all groups, for a pipeline those of all stages.
    """
    groups = side.schedule.groups
    apart = computed_apart(side.plan.graph, groups.gathered)
    settings = (setting for phase in side.plan.distinct for setting in phase.settings.items())
    counts = (
        int(setting.value) * (groups.count if node in apart else 1)
        for (node, name), setting in settings
        if name in _CUT
    )
    stages = 1 + max(len(ends(phase.settings)) for phase in side.plan.distinct)
    return stages * max(groups.count, *counts)


def _refuse_world(study: Study, ranks: Mapping[str, int]) -> None:
    """Raises SpecError if the job has another number of processes than the plan has ranks."""
    world, where = dist.get_world_size(), Where(study.path)
    if not ranks:
        raise SpecError(
            f"{where}: --ranks real: neither side lies on more than one rank. Give one of them "
            f"`placement: {{tensor: {world}}}`."
        )
    most = max(ranks.values())
    if world != most:
        lie = " and ".join(f"the {name} lies on {count} ranks" for name, count in ranks.items())
        raise SpecError(
            f"{where}: --ranks real: {lie}, and the job has {world} processes. Start {most} of them: "
            f"`torchrun --nproc-per-node {most} ...`."
        )
    uneven = next((name for name, count in ranks.items() if world % count), None)
    if uneven is not None:
        raise SpecError(
            f"{where}: --ranks real: the {uneven} lies on {ranks[uneven]} ranks, which {world} processes can't be cut "
            "into. Run it against a side on one rank."
        )


def _side(study: Study, name: str, side: Side, progress: Callback | None) -> SideOnRanks:
    passes, walk = study.passes(progress), walker(study, name, side)
    live = LiveRanks(stage_of(side.plan.graph, side.plan.settings))
    simulated, real = _Values(name), _Values(name, live)
    passes.run([walk], [simulated])
    with computing(live):
        passes.run([walk], [real])
    unequal_here = {node for (node, wave), digest in simulated.of_node.items() if real.of_node[node, wave] != digest}
    unequal: set[str] = set().union(*_from_all(unequal_here))
    nodes = dict.fromkeys(node for node, _ in simulated.of_node)
    return SideOnRanks(
        side=name,
        ranks=ranks_of(side),
        nodes=len(nodes),
        unequal=tuple(node for node in nodes if node in unequal),
        sites=tuple(_sites(side.plan, real.reductions, live.stage("")[1])),
    )


def _from_all(own_value: Any) -> list[Any]:
    """This value of every rank, in a list."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own_value)
    return every


def _sites(plan: Plan, reductions: Mapping[str, Sequence[Reduction]], stages: int) -> Iterator[Site]:
    """The sums that were reduced, with layers that are alike taken together. A message that several ranks of one stage
    saw counts once; the stages' numbers are added up.
    """
    nodes = {node.name: node for node in plan.graph.nodes}
    of_site: dict[tuple[str, str, str, int, str], list[Reduction]] = {}
    for name, node_reductions in reductions.items():
        active = plan.active(nodes[name])
        collective = str(active.get("collective", NONE))
        order = str(active.get("order", active.get("ranks", ""))) if collective == NONE else collective
        for reduction in node_reductions:
            of_site.setdefault((role(name), order, reduction.call, reduction.ranks, reduction.dtype), []).append(
                reduction
            )
    by_rank = _from_all(of_site)
    for key in dict.fromkeys(key for own_reductions in by_rank for key in own_reductions):
        of_ranks = [own_reductions.get(key, []) for own_reductions in by_rank]
        every = [reduction for own_reductions in of_ranks for reduction in own_reductions]
        ranks_of_stage = len(of_ranks) // stages
        of_stages = [of_ranks[first : first + ranks_of_stage] for first in range(0, len(of_ranks), ranks_of_stage)]
        node, order, call, ranks, dtype = key
        unequal = [reduction for reduction in every if reduction.differing]
        yield Site(
            node=node,
            order=order,
            call=call,
            ranks=ranks,
            dtype=dtype,
            messages=sum(max(map(len, of_stage)) for of_stage in of_stages),
            least_elements=min(reduction.elements for reduction in every),
            most_elements=max(reduction.elements for reduction in every),
            differing=sum(max(map(_differing, of_stage)) for of_stage in of_stages),
            orders=tuple(sorted(frozenset.intersection(*(reduction.orders for reduction in unequal))))
            if unequal
            else (),
        )


def _differing(reductions: Sequence[Reduction]) -> int:
    return sum(bool(reduction.differing) for reduction in reductions)


def _identified(sides: Sequence[SideOnRanks]) -> list[SideOnRanks]:
    """The sides with what the probe finds, for sums over the whole job that have other bits than simulated."""
    probed_of: dict[tuple[str, str, int], tuple[str, ...]] = {}

    def identified(site: Site) -> Site:
        if not site.differing or site.call not in COLLECTIVES or site.ranks != dist.get_world_size():
            return site
        key = (site.call, site.dtype, site.most_elements)
        if key not in probed_of:
            probed_of[key] = probe(*in_job(site.call, torch_dtype(site.dtype), site.most_elements)).collectives
        return replace(site, probed=probed_of[key])

    return [replace(side, sites=tuple(map(identified, side.sites))) for side in sides]


class _Values:
    """Digests of a side's values at every node, and what was reduced there.

    of_node: by node and wave. Partial sums are left out, since a rank has only its own; their sum is compared instead.
    """

    def __init__(self, side: str, live: LiveRanks | None = None) -> None:
        self.side, self.live = side, live
        self.of_node: dict[tuple[str, tuple[int, int]], str] = {}
        self.reductions: dict[str, list[Reduction]] = defaultdict(list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if self.live is not None:
            self.reductions[view.node.name] += self.live.take()
        if not view.ran(self.side):
            return
        whole = [block for port in view.outputs[self.side] for block in port if block.partials == 1]
        if whole:
            self.of_node[view.node.name, view.wave] = _digest(whole)


def _digest(blocks: list[Block]) -> str:
    digest = sha256()
    for block in blocks:
        tensor = block.tensor.detach().cpu().contiguous()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
