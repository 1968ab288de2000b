"""Who is to blame, by how much, and the smallest fix: searches among mixtures of both sides, after a bisection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Logits
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.trials import walker
from moeparity.engine.routes import IDS
from moeparity.errors import SpecError, Where
from moeparity.metrics.interval import tail_mean
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, bound_side
from moeparity.plan.spec import variant_schema
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback
from moeparity.search.fixes import Fixes, MayStay, fix_sets, keep
from moeparity.search.interactions import Interaction, interactions
from moeparity.search.judged_apart import Apart, judged_apart
from moeparity.search.localise import localise
from moeparity.search.memo import Evaluate, Memo, Mixture, Outcome
from moeparity.search.roles import Role
from moeparity.search.tree import Cell, Group, leaves, name
from moeparity.search.waterfall import Share, Waterfall, waterfall

INTERACTING = 8
"""At most so many toggles, those with the largest shares, are looked at in pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What the searches found.

    shares: the KL shared out among the recipe's toggles.
    forced: the same with every mixture's routers forced to the reference's expert ids; None where no expert set
        differs between the sides, or there is no router.
    apart: the toggles that are no legal choices, together; None without any, or without others.
    inside: the toggles with a share that is not saturated, taken apart where the share is; None without any.
    interactions: of the toggles that act, in pairs.
    may_stay: None where no set of toggles is a fix.
    in_fp32: KL(candidate || reference), nats per token, with both sides computed in fp32; only where toggles are
        saturated and both sides are in 16 bits.
    mixtures, passes, seconds: walked beyond what the bisection saw, all searches together.
    """

    shares: Waterfall
    forced: Waterfall | None
    apart: Apart | None
    inside: Waterfall | None
    interactions: tuple[Interaction, ...]
    fixes: Fixes
    may_stay: MayStay | None
    in_fp32: float | None
    mixtures: int
    passes: int
    seconds: float


def search(plan: Plan, observed: Observed, progress: Callback | None, store: PieceStore | None) -> Blame | None:
    """What the searches of a recipe with `attribute:` find; None for others."""
    return blame(plan, observed, progress=progress, store=store) if plan.recipe.attribute else None


def blame(
    plan: Plan, observed: Observed, *, progress: Callback | None = None, store: PieceStore | None = None
) -> Blame | None:
    """Share the divergence out, take the shares apart, and look for the smallest fixes; None without toggles.

    What the passes of the bisection saw is not evaluated again.
    """
    whole = [toggle for toggle in plan.trial_toggles if toggle.parent is None]
    if not whole:
        return None
    cells = {toggle.name: _cell(toggle) for toggle in whole}
    # Parts that a split made and those the localisation needs have the same names.
    toggles = {toggle.name: toggle for toggle in [*plan.toggles, *(p for t in whole for p in parts_of(t))]}
    natural = Mixtures(replace(plan, toggles=tuple(toggles.values())), progress=progress, store=store, name="shares")
    natural.learn(observed)
    players = tuple(cells)
    memo = Memo(players, natural)
    top: Cell = Group("all", players) if len(players) > 1 else players[0]
    apart = frozenset(toggle.name for toggle in whole if not is_legal(toggle, observed))
    parts_apart = apart | frozenset(leaf for name in apart for leaf in leaves(cells[name]))
    shares = waterfall(memo, top, over_sequences, apart=apart)
    routed = Mixtures(plan, routes=IDS, progress=progress, store=store, name="shares-routed")
    forced_memo = Memo(players, routed) if _flips(observed) else None
    forced = None if forced_memo is None else waterfall(forced_memo, top, over_sequences, apart=apart)
    fixes = fix_sets(memo, plan.gate.below, budget=plan.recipe.mixtures)
    return Blame(
        shares=shares,
        forced=forced,
        apart=judged_apart(apart, memo, forced_memo, over_sequences),
        inside=_inside(shares, cells, natural, plan.recipe.mixtures, parts_apart),
        interactions=tuple(interactions(memo, _acting(shares), over_sequences)),
        fixes=fixes,
        may_stay=keep(fixes, plan.recipe.costs or None),
        in_fp32=_in_fp32(plan, progress) if _saturated(shares) else None,
        mixtures=natural.walked + routed.walked,
        passes=natural.passes + routed.passes,
        seconds=natural.seconds + routed.seconds,
    )


def over_sequences(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of sum(sums) / sum(tokens), both [B], in the units of `sums` per that of `tokens`."""
    interval = tail_mean(torch.tensor(sums, dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64))
    return interval.low, interval.high


def _cell(toggle: Toggle) -> Cell:
    """A toggle as a group of its attributes, of their kinds of nodes, of halves of the layers of these."""
    parts = split(toggle)
    return Group(toggle.name, tuple(_cell(part) for part in parts)) if parts else toggle.name


def parts_of(toggle: Toggle) -> Iterator[Toggle]:
    """What a toggle is taken apart into, and these in turn."""
    for part in split(toggle):
        yield part
        yield from parts_of(part)


def _flips(observed: Observed) -> bool:
    """Whether the candidate chose another expert set than the reference anywhere."""
    flips = observed.routes.total(CANDIDATE)
    return flips is not None and flips.set_flips > 0


def _saturated(shares: Waterfall) -> bool:
    return sum(share.role is Role.SATURATED for share in shares.shares) > 1


def _acting(shares: Waterfall) -> list[str]:
    """The toggles to look at in pairs, in the order of the table."""
    shares_that_act = [share for share in shares.shares if share.role not in (Role.NO_EFFECT, Role.REFUSED)]
    largest = sorted(shares_that_act, key=lambda share: abs(share.share), reverse=True)[:INTERACTING]
    return [share.name for share in shares_that_act if share in largest]


def _inside(
    shares: Waterfall, cells: Mapping[str, Cell], natural: Mixtures, budget: int, apart: Mixture
) -> Waterfall | None:
    """Where in the layers shares are made; what is saturated is the same in every part, and stays whole."""
    names = {share.name for share in shares.shares if _worth_opening(share)}
    chosen = [cell if name(cell) in names else name(cell) for cell in cells.values()]
    if all(isinstance(cell, str) for cell in chosen):
        return None
    tree = Group("all", tuple(chosen)) if len(chosen) > 1 else chosen[0]
    memo = Memo(leaves(tree), _merged(chosen, natural))
    return localise(memo, tree, over_sequences, apart=apart, budget=budget)


def _worth_opening(share: Share) -> bool:
    return share.role in (Role.CULPRIT, Role.CONTRIBUTES, Role.HELPS, Role.OFFSETS)


def _merged(cells: Sequence[Cell], natural: Mixtures) -> Evaluate:
    """Mixtures of parts, in which a toggle with all its parts stands for them: so none is evaluated in two names."""

    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        toggles_of = {mixture: frozenset(n for cell in cells for n in _names(cell, mixture)) for mixture in mixtures}
        outcomes = natural(list(dict.fromkeys(toggles_of.values())))
        return {mixture: outcomes[names] for mixture, names in toggles_of.items()}

    return evaluate


def _names(cell: Cell, mixture: Mixture) -> Iterator[str]:
    presence = [leaf in mixture for leaf in leaves(cell)]
    if all(presence):
        yield name(cell)
    elif any(presence):
        assert isinstance(cell, Group)
        for member in cell.members:
            yield from _names(member, mixture)


def _rebound(plan: Plan, variant: variant_schema.Variant) -> Side:
    """A side as the recipe says it, in fp32."""
    where = Where(plan.path, variant.line)
    profile, count = load_profile(variant.profile, where), len(plan.tokens.input_ids)
    wide = variant.model_copy(update={"dtype": "fp32"})
    phases = plan.reference.plan.phases
    return bound_side(plan.model.graph, wide, profile, plan.model.dtype, where, count, phases=phases)


def _in_fp32(plan: Plan, progress: Callback | None) -> float | None:
    """KL(candidate || reference) with both sides in fp32; None where one is not in 16 bits, or an op refuses it."""
    sides = (plan.reference, plan.candidate)
    if plan.functions or any(side.plan.dtype not in ("bf16", "fp16") for side in sides):
        return None
    with suppress(SpecError):
        variants = (plan.recipe.reference, plan.recipe.candidate)
        reference, candidate = (_rebound(plan, variant) for variant in variants)
        ids, _, scored = plan.tokens_on_device
        logits = Logits(plan.model.graph.scores, REFERENCE, [CANDIDATE], ids, scored, plan.recipe.tokens.sampler)
        walkers = [walker(plan, REFERENCE, reference), walker(plan, CANDIDATE, candidate)]
        plan.passes(progress).run(walkers, [logits])
        return logits.sums(CANDIDATE).mean("kl_candidate_reference")
    return None
