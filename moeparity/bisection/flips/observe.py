"""An observer that counts the routing flips of one candidate: where, from what, how near the cut, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.flips.census import (
    AFTER_OTHER,
    AFTER_OWN,
    ROOT,
    TIED,
    Census,
    MarginCounts,
)
from moeparity.bisection.kernels import settings_of
from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.routing import Drift, Flips, cut, flips, perturbation, weight_drift
from moeparity.numerics.bits import int_view
from moeparity.ops.kernels.router import ranks_logits, selection
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.sides import CANDIDATE, REFERENCE, SIDES, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What one side's router ranks experts by. The fields are its kernel's arguments: weights `w`, parameters `p`, and
    the values `at` of its attributes.
    """

    w: Mapping[str, Tensor]
    p: Mapping[str, Any]
    at: Mapping[str, Any]


Rankings = Mapping[Case, Ranking]
"""How one side's router ranks, by case of its plan."""


class FlipObserver(SectionObserver):
    """Fills a `Census` as values go by.

    rankings: router -> both sides' rankings, by case. attention_mask: bool [B, T]; tokens that are False are left out,
    and so are routes inside users' functions. input_ids, loss_mask, sampled_from: as in `Logits`. trials: further
    walkers, whose flips are compared with the candidate's.
    """

    def __init__(
        self,
        rankings: Mapping[str, tuple[Rankings, Rankings]],
        layers: Sequence[int],
        trials: Sequence[WalkerName],
        *,
        output: str,
        input_ids: Tensor,
        loss_mask: Tensor,
        attention_mask: Tensor,
        sampled_from: Literal["candidate", "reference"],
    ) -> None:
        self.rankings, self.trials = rankings, trials
        self.output, self.input_ids, self.loss_mask = output, input_ids, loss_mask
        self.attention_mask, self.sampled_from = attention_mask, sampled_from
        shape = tuple(attention_mask.shape)
        top_k = next((int(ranking.p["top_k"]) for ours, _ in rankings.values() for ranking in ours.values()), 0)
        self.census = Census(torch.zeros(len(layers), *shape, dtype=torch.uint8), list(layers), top_k)
        self.places = {name: place for place, name in enumerate(rankings)}
        # By the start of a wave. agree: bool [B, T], tokens whose gate input, and whose gate output, is equal on both
        # sides. logits: both sides' gate outputs.
        self.agree: dict[int, tuple[Tensor, Tensor]] = {}
        self.logits: dict[int, tuple[Tensor, Tensor]] = {}
        self.departures = torch.zeros(shape, dtype=torch.bool)
        self.left_at: dict[tuple[str, bool], Tensor] = {}
        self.flip_map = torch.zeros(shape, dtype=torch.bool)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(*SIDES):
            return
        rows = slice(*view.wave)
        self._departures(view, rows)
        if view.node.op.role.gates:
            self._gate(view)
        if view.node.name in self.rankings:
            self._router(view, rows)
        if view.node.name == self.output:
            self._cost(view, rows)

    def part(self, rows: slice) -> Census:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.census.part(rows)

    def join(self, part: Census, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.census.join(part, rows)

    @property
    def result(self) -> Census:
        """The census."""
        return self.census

    def _departures(self, view: NodeView, rows: slice) -> None:
        """Note which tokens' rows leave the reference's bits at this node. Padding is ignored, since no token reads
        it.
        """
        if view.outputs_agree(*SIDES):
            return
        departures, real = self.departures[rows], self.attention_mask[rows].cpu()
        if bool((departures | ~real).all()):
            return
        equal = torch.ones_like(departures)
        for port in range(len(view.outputs[REFERENCE])):
            ours, theirs = (view.tensor(side, port) for side in SIDES)
            equal &= equal_rows(ours, theirs, view.node.op.tokens.axis).cpu()
        new_departures = ~equal & ~departures & real
        exposure = (
            (departures.cumsum(-1) - departures.int() > 0)
            if view.node.op.tokens.mixes
            else torch.zeros_like(departures)
        )
        for through in (False, True):
            mask = new_departures & (exposure == through)
            if bool(mask.any()):
                key = (view.node.name, through)
                self.left_at.setdefault(key, torch.zeros_like(self.departures))[rows] |= mask
        self.departures[rows] = departures | new_departures

    def _gate(self, view: NodeView) -> None:
        ours, theirs = (view.tensor(side) for side in SIDES)
        self.logits[view.wave[0]] = (ours, theirs)
        input_blocks = [view.inputs[side][0] for side in SIDES]
        if view.regions or input_blocks[0] is None or input_blocks[1] is None:
            return
        inputs = [assemble(blocks, view.batch) for blocks in input_blocks if blocks is not None]
        self.agree[view.wave[0]] = (equal_rows(inputs[0], inputs[1], 1).cpu(), equal_rows(ours, theirs, 1).cpu())

    def _router(self, view: NodeView, rows: slice) -> None:
        place, census = self.places[view.node.name], self.census
        reference, candidate = (view.tensor(side) for side in SIDES)
        mask = self.attention_mask[rows]
        flip_mask = census.add(place, rows, mask, (reference, candidate))
        weights = [view.tensor(side, 1)[mask] for side in SIDES]
        drift = weight_drift((reference[mask], weights[0]), (candidate[mask], weights[1]))
        census.drift[place] = census.drift.get(place, Drift()) + drift
        self._origin(view, rows, place, flip_mask)
        self._margins(view, rows, place, flip_mask)
        for trial in self.trials:
            if view.ran(trial):
                _, trial_flips = flips(reference[mask], view.tensor(trial)[mask])
                census.also[trial] += int((trial_flips.cpu() & flip_mask[mask.cpu()]).sum())
        self.flip_map[rows] |= flip_mask

    def _origin(self, view: NodeView, rows: slice, place: int, flip_mask: Tensor) -> None:
        """Mark flips as root or inherited, and inherited ones by which earlier flips they follow."""
        census, earlier_flips = self.census, self.flip_map[rows]
        agree = self.agree.pop(view.wave[0], None)
        if agree is None or view.regions:
            census.unknown[place] += int(flip_mask.sum())
            return
        inputs, logits = agree
        root_flips, inherited_flips = flip_mask & inputs, flip_mask & ~inputs
        census.root_at[place, "router"] += int((root_flips & logits).sum())
        census.root_at[place, "gate"] += int((root_flips & ~logits).sum())
        census.mark(place, rows, root_flips, ROOT)
        census.mark(place, rows, inherited_flips & earlier_flips, AFTER_OWN)
        census.mark(place, rows, inherited_flips & ~earlier_flips & (earlier_flips.cumsum(-1) > 0), AFTER_OTHER)

    def _margins(self, view: NodeView, rows: slice, place: int, flip_mask: Tensor) -> None:
        """Count margins and perturbations, if both sides rank by the same quantity (logits or scores)."""
        logits, sides = self.logits.pop(view.wave[0], None), self.rankings[view.node.name]
        if logits is None or view.regions or len({ranks_logits(r.at) for of in sides for r in of.values()}) > 1:
            return
        mask = self.attention_mask[rows]
        score_pairs = [selected(view, *of) for of in zip(SIDES, sides, logits, strict=True)]
        scores_of_all, scores_in_groups = ([pair[i][mask] for pair in score_pairs] for i in (0, 1))
        ids = (view.tensor(REFERENCE)[mask], view.tensor(CANDIDATE)[mask])
        if ids[0].shape[-1] == scores_of_all[0].shape[-1]:
            return
        ours, theirs = (cut(scores, experts) for scores, experts in zip(scores_in_groups, ids, strict=True))
        ties = ((ours.margin == 0) | (theirs.margin == 0)).cpu()
        groups = ((scores_in_groups[0] == scores_of_all[0]) != (scores_in_groups[1] == scores_of_all[1])).any(-1).cpu()
        perturbations = perturbation(scores_of_all[0], scores_of_all[1], ids, ours).cpu()
        tally = self.census.margins.setdefault(place, MarginCounts(str(scores_of_all[0].dtype).removeprefix("torch.")))
        tally.add(ours.margin.cpu(), perturbations, flip_mask[mask.cpu()], ties, groups)
        self.census.keep_cuts(place, rows, mask.cpu(), ours.margin.cpu(), perturbations)
        tie_map = torch.zeros_like(flip_mask)
        tie_map[mask.cpu()] = ties
        self.census.mark(place, rows, tie_map, TIED)

    def _cost(self, view: NodeView, rows: slice) -> None:
        """Sum what scored tokens cost, split by whether their position flips in some layer."""
        census = self.census
        if census.cost is None:
            census.cost = torch.zeros(2, 4, len(self.flip_map), dtype=torch.float64)
        scored = self.loss_mask[rows]
        metrics = seen_metrics(view, *SIDES, self.input_ids[rows], scored, self.sampled_from)
        # A token is scored by the logits of the position before it, so that position's routes count.
        position = self.flip_map[rows].roll(1, -1)
        values = (metrics.scored.double(), metrics.kl_candidate_reference, metrics.k3, metrics.delta.abs())
        for flip in (False, True):
            mask = metrics.scored & ~metrics.outside & (position == flip)
            for i, value in enumerate(values):
                census.cost[int(flip), i, rows] = torch.where(mask, value, 0.0).sum(-1)
        flip_rows = self.flip_map[rows]
        for key, departures in self.left_at.items():
            count = int((departures[rows] & flip_rows).sum())
            if count:
                census.left_at[key] += count


def observer(study: Study, trials: Trials) -> FlipObserver | None:
    """The observer of the candidate's routing flips; None for a model without routers."""
    routers = [node for node in study.model.graph.nodes if node.op.role.routes]
    if not routers:
        return None
    ids, mask, scored = study.outcomes_on_device
    sides = (study.reference, study.candidate)
    return FlipObserver(
        {node.name: (rankings(study, sides[0], node), rankings(study, sides[1], node)) for node in routers},
        [-1 if node.layer is None else node.layer for node in routers],
        [key for key, trial in trials.items() if trial.routes is None],
        # The routes at one token say nothing of what a whole pair costs.
        output="" if study.model.graph.pairs else study.model.graph.scores,
        input_ids=ids,
        loss_mask=scored,
        attention_mask=mask,
        sampled_from=study.recipe.tokens.sampler,
    )


def bytes_per_token(study: Study) -> int:
    """Bytes that the census takes for each token if every token flips in every layer: map, margins, perturbations and
    experts, and the marks of tokens that leave the reference's bits, by node.
    """
    nodes = study.model.graph.nodes
    routers = [node for node in nodes if node.op.role.routes]
    cuts = torch.uint8.itemsize + 2 * torch.float32.itemsize
    experts = (torch.int64.itemsize * (2 + 2 * int(node.params["top_k"])) for node in routers)
    marks = 2 * len(nodes) + 2
    return sum(cuts + own_bytes for own_bytes in experts) + marks if routers else 0


def rankings(study: Study, side: Side, node: Node) -> Rankings:
    """How a side's router ranks. Of its weights only the correction bias is kept, which is small."""
    by_case = {case: settings_of(study, side, case) for case in side.plan.phases}
    w = by_case[side.plan.phases[0]].weights(node)
    return {
        case: Ranking(w=w, p=settings.node(node).params, at=settings.at(node)) for case, settings in by_case.items()
    }


def selected(view: NodeView, walker: WalkerName, of: Rankings, logits: Tensor) -> tuple[Tensor, Tensor]:
    """What a walker's router selects by, each [B, T, E]: scores of all experts, and those within kept groups. Each
    token's scores are made by the ranking of its case.
    """
    parts: list[tuple[Ranking, Tensor]] = []
    for case, tokens in view.tokens_by_case(walker, of).items():
        same = next((i for i, (ranking, _) in enumerate(parts) if ranking.at == of[case].at), None)
        if same is None:
            parts.append((of[case], tokens))
        else:
            parts[same] = parts[same][0], parts[same][1] | tokens
    (first, _), *others = parts
    scores = selection(logits, w=first.w, p=first.p, at=first.at)
    for ranking, tokens in others:
        own_scores, there = (
            selection(logits, w=ranking.w, p=ranking.p, at=ranking.at),
            tokens[..., None].to(logits.device),
        )
        scores = torch.where(there, own_scores[0], scores[0]), torch.where(there, own_scores[1], scores[1])
    return scores


def equal_rows(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Which tokens have equal bits in both values: bool [B, T].

    a, b: [B, ..., T at `axis`, ...], any dtypes; two dtypes are compared in the wider one. If a fault made the shapes
    differ, no token is equal.
    """
    if a.shape != b.shape:
        return torch.zeros(a.movedim(axis, 1).shape[:2], dtype=torch.bool, device=a.device)
    dtype = torch.promote_types(a.dtype, b.dtype)
    equal = (int_view(a.to(dtype)) == int_view(b.to(dtype))).movedim(axis, 1)
    return equal.flatten(2).all(-1) if equal.dim() > 2 else equal


CENSUS: Final[Watch[Census]] = Watch(
    "flips", observer, (Census, MarginCounts, Flips, Drift), bytes_per_token=bytes_per_token
)
