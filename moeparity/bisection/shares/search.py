"""Searches for shares and for the smallest fixes among mixtures of both sides, after a bisection's own passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import torch

from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Logits
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shares.places import Places, expected_of_places, places
from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.bisection.watch import Search
from moeparity.engine.routes import IDS
from moeparity.errors import SpecError, Where
from moeparity.metrics.interval import tail_mean
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, bound_side
from moeparity.plan.spec import variant_schema
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback
from moeparity.search.fixes import Fixes, MayStay, fix_sets, may_stay
from moeparity.search.interactions import Interaction, interactions
from moeparity.search.judged_apart import Apart, judged_apart
from moeparity.search.ledger import mixtures_needed
from moeparity.search.memo import Evaluate, Memo, Mixture, Outcome
from moeparity.search.roles import Role
from moeparity.search.tree import Cell, Group, leaves, name
from moeparity.search.waterfall import Share, Waterfall, localise, waterfall


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureCounts:
    """The fewest and the most mixtures that may be asked for.

    Fewest: no expert set differs, and nothing is taken apart. Most: shares with forced experts too, all toggles taken
    apart and all sets of fixes tried, each as far as its budget goes.
    """

    fewest: int
    most: int

    def __str__(self) -> str:
        """`22 to 190 mixtures`."""
        return self.of("mixture")

    def of(self, noun: str) -> str:
        """The numbers of whatever is counted: `22 trials`."""
        numbers = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        return f"{numbers} {noun}{'s' * (self.most != 1)}"


def expected_mixtures(study: Study) -> MixtureCounts:
    """The mixtures of a study with `attribute:`, beyond those of its first pass."""
    whole = study.whole_toggles
    if not whole:
        return MixtureCounts(fewest=0, most=0)
    budget, count = study.recipe.mixtures, len(whole)
    shares = mixtures_needed(_tree(whole, opened=False))
    # The first pass runs each toggle alone and restored. With one toggle or two, these are the same mixtures.
    in_first_pass = 1 if count == 1 else 2 if count == 2 else 2 * count
    subsets = min(1 << count, budget)
    inside = min(mixtures_needed(_tree(whole, opened=True)) - shares, budget)
    pairs = min(count, INTERACTING) * (min(count, INTERACTING) - 1) // 2
    fixes = max(subsets - shares, 0)
    fewest, most = expected_of_places(study)
    return MixtureCounts(
        fewest=max(shares - in_first_pass, 0) + fewest,
        most=2 * shares - in_first_pass + inside + fixes + pairs + most,
    )


def _tree(whole: Sequence[Toggle], *, opened: bool) -> Cell:
    cells: tuple[Cell, ...] = tuple(cell_of(toggle) if opened else toggle.name for toggle in whole)
    return Group("all", cells) if len(cells) > 1 else cells[0]


INTERACTING = 8
"""At most this many toggles, those with the largest shares, are paired to look for interactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What the searches found.

    shares: the KL divided among the recipe's toggles.
    forced: the same with every mixture's routers forced to the reference's expert ids; None if no expert set differs
        between the sides, or there is no router.
    apart: the toggles that are not legal choices, together; None if there are none, or nothing else.
    inside: toggles whose share is not saturated, taken apart where their share is; None if there is none.
    interactions: of the toggles that have an effect, in pairs.
    may_stay: None if no set of toggles is a fix.
    places: which layers and which kinds of ops to leave as the reference rounds them; empty where roundings differ in
        one place only.
    in_fp32: KL(candidate || reference), nats per token, with both sides computed in fp32; only if toggles are saturated
        and both sides are in 16 bits.
    mixtures, passes, seconds: of all searches together, beyond the bisection's own passes.
    refused: for each mixture that can't run, the node, the choice that an op refuses there, and why.
    """

    shares: Waterfall
    forced: Waterfall | None
    apart: Apart | None
    inside: Waterfall | None
    interactions: tuple[Interaction, ...]
    fixes: Fixes
    may_stay: MayStay | None
    places: tuple[Places, ...]
    in_fp32: float | None
    mixtures: int
    passes: int
    seconds: float
    refused: tuple[str, ...]


def search(study: Study, observed: Observed, progress: Callback | None, store: PieceStore | None) -> Searched | None:
    """The results for a recipe with `attribute:`; None for other recipes."""
    return shared_out(study, observed, progress=progress, store=store) if study.recipe.attribute else None


def shared_out(
    study: Study, observed: Observed, *, progress: Callback | None = None, store: PieceStore | None = None
) -> Searched | None:
    """Divide the divergence into shares, take large shares apart, and look for the smallest fixes; None without
    toggles.

    Mixtures that the bisection's own passes have run are not run again.
    """
    whole = study.whole_toggles
    if not whole:
        return None
    cells = {toggle.name: cell_of(toggle) for toggle in whole}
    # A part that `split` made has the same name as that part in a search.
    toggles = {toggle.name: toggle for toggle in [*study.toggles, *(p for t in whole for p in parts_of(t))]}
    natural = Mixtures(replace(study, toggles=tuple(toggles.values())), progress=progress, store=store, name="shares")
    natural.learn(observed)
    players = tuple(cells)
    memo = Memo(players, natural)
    top: Cell = Group("all", players) if len(players) > 1 else players[0]
    apart = frozenset(toggle.name for toggle in whole if not is_legal(toggle, observed))
    parts_apart = apart | frozenset(leaf for name in apart for leaf in leaves(cells[name]))
    shares = waterfall(memo, top, over_sequences, apart=apart)
    routed = Mixtures(study, routes=IDS, progress=progress, store=store, name="shares-routed")
    forced_memo = Memo(players, routed) if _flips(observed) else None
    forced = None if forced_memo is None else waterfall(forced_memo, top, over_sequences, apart=apart)
    fixes = fix_sets(memo, study.gate.below, budget=study.recipe.mixtures)
    by_place = places(study, over_sequences, progress, store)
    return Searched(
        shares=shares,
        forced=forced,
        apart=judged_apart(apart, memo, forced_memo, over_sequences),
        inside=_inside(shares, cells, natural, study.recipe.mixtures, parts_apart),
        interactions=tuple(interactions(memo, _acting(shares), over_sequences)),
        fixes=fixes,
        may_stay=may_stay(fixes, study.recipe.costs or None),
        in_fp32=_in_fp32(study, progress) if _saturated(shares) else None,
        places=by_place.places,
        mixtures=natural.walked + routed.walked + by_place.mixtures,
        passes=natural.passes + routed.passes + by_place.passes,
        seconds=natural.seconds + routed.seconds + by_place.seconds,
        refused=(*natural.refused.values(), *routed.refused.values(), *by_place.refused),
    )


def over_sequences(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of sum(sums) / sum(tokens), both [B], in the unit of `sums` per token."""
    interval = tail_mean(torch.tensor(sums, dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64))
    return interval.low, interval.high


def cell_of(toggle: Toggle) -> Cell:
    """A toggle as a tree: its attributes, below them kinds of nodes, below them halves of their layers."""
    parts = split(toggle)
    return Group(toggle.name, tuple(cell_of(part) for part in parts)) if parts else toggle.name


def parts_of(toggle: Toggle) -> Iterator[Toggle]:
    """All parts into which a toggle is taken apart, at every level."""
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
    """Where in the layers shares are made. Saturated toggles stay whole, since every part makes the same."""
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
    """Evaluates mixtures of parts. A toggle all of whose parts are in a mixture stands for them, so that no mixture is
    evaluated under two names.
    """

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


def _rebound(study: Study, variant: variant_schema.Variant) -> Side:
    """A side of the recipe, bound in fp32."""
    where = Where(study.path, variant.line)
    profile, count = load_profile(variant.profile, where), len(study.tokens.input_ids)
    wide = variant.model_copy(update={"dtype": "fp32"})
    phases = study.reference.plan.phases
    versions = study.recipe.earlier
    return bound_side(
        study.model.graph, wide, profile, study.model.dtype, where, count, phases=phases, versions=versions
    )


def _in_fp32(study: Study, progress: Callback | None) -> float | None:
    """KL(candidate || reference) with both sides in fp32; None if a side is not in 16 bits, or if an op refuses it."""
    if study.functions or any(side.plan.dtype not in ("bf16", "fp16") for side in study.sides.values()):
        return None
    with suppress(SpecError):
        variants = (study.recipe.reference, study.recipe.candidate)
        reference, candidate = (_rebound(study, variant) for variant in variants)
        logits = Logits.of(study, [CANDIDATE])
        walkers = [walker(study, REFERENCE, reference), walker(study, CANDIDATE, candidate)]
        study.passes(progress).run(walkers, [logits])
        return logits.sums(CANDIDATE).mean("kl_candidate_reference")
    return None


SHARES: Final[Search[Searched]] = Search("shares", search)
