"""Pairs of engine profiles on one checkpoint, measured: all walk the graph together, then every choice alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path

import torch

from moeparity.bisection.arrival.measure import arrival_draws
from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.documents.checked import shipped
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.reader import read_tokens
from moeparity.metrics.tokens import first_occurrences
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.cut import cut_by
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.messages import RowMessage
from moeparity.plan.rule import UNKNOWN, Rule
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.sides import Side, micro_batches
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.toggles import Toggle, mixed, toggles
from scripts.pages.page import ROOT

CHECKPOINT = ROOT / "checkpoints" / "quickstart"
TOKENS = ROOT / "recipes" / "rounding.safetensors"
MICRO_BATCH = 8
FEW, SHORT = 8, 32
"""Single choices are tried on the first so many sequences, and of each on so many tokens."""
HERE = Where(Path("engine_pairs"))
OPAQUE = "opaque"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two profiles: how far apart, where it starts, and the choice of the second that moves the first most alone.

    k3 and kl are in nats per scored token, kl being KL(second || first) over the vocabulary; flips a share of
    token-layers. `root` is None where no bit differs anywhere. `choices` counts the toggles; `unsure` of them rest on a
    value that is `unknown` on a side, and `opaque` on one that nobody can know.
    """

    first: str
    second: str
    k3: float
    kl: float
    flips: float
    root: str | None
    choices: int
    unsure: int
    opaque: int
    guilty: Guilty | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guilty:
    """The choice that alone costs most: its name, its share of the whole KL, its evidence on both sides.

    `rivals` are other choices that alone cost at least half of the whole as well.
    """

    name: str
    share: float
    levels: tuple[str, ...]
    rivals: int


@cache
def _rules_of_all() -> tuple[Rule, ...]:
    """What any shipped profile says."""
    profiles = (load_profile(name, HERE) for name in shipped("profiles"))
    return tuple(rule for profile in profiles for layer in profile.layers for rule in layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The checkpoint with its tokens, and what every profile is bound under: a placement, and settings of its own."""

    model: Model
    tokens: TokenSet
    placement: Placement
    settings: Mapping[str, Value]

    def side(self, profile: str, micro_batch: int = MICRO_BATCH) -> Side:
        """A profile bound to the checkpoint."""
        ranks = placement_rules(self.placement, HERE)
        settings = overrides(self.settings, HERE)
        # All are cut alike, so that any two can be compared.
        message = RowMessage.of(self.model.graph, self.model.dtype, ranks)
        rules = (row_rule for rule in _rules_of_all() for row_rule in message.in_rows(rule))
        phases = cut_by(self.model.graph, (FORWARD,), rules)
        plan = bind(
            self.model.graph, load_profile(profile, HERE), self.model.dtype, settings, placement=ranks, phases=phases
        )
        return Side(plan=plan, schedule=ScheduleSettings(batch=micro_batch))

    def walk(self, sides: Mapping[str, Side], observers: Sequence[Observer]) -> None:
        """One lockstep pass of all sides over the tokens."""
        walkers = [Walker(name=name, plan=side.plan, schedule=micro_batches(side)) for name, side in sides.items()]
        mask = self.tokens.attention_mask
        run(walkers, self.model.weights, self.tokens.input_ids, observers, attention_mask=mask)

    def logits_of(self, reference: str, others: Sequence[str]) -> Logits:
        """Looks at the log-probabilities of `others` beside those of `reference`."""
        ids, scored = self.tokens.input_ids, self.tokens.loss_mask
        first = first_occurrences(ids, scored)
        return Logits(self.model.graph.scores, reference, others, ids, scored, "candidate", first)

    def part(self) -> Bench:
        """The same on the tokens that single choices are tried on."""
        tokens = self.tokens
        ids, scored, mask = (
            x[:FEW, :SHORT].contiguous() for x in (tokens.input_ids, tokens.loss_mask, tokens.attention_mask)
        )
        return replace(self, tokens=replace(tokens, input_ids=ids, loss_mask=scored, attention_mask=mask))


def opened() -> Bench:
    """The shipped checkpoint and its tokens, on one rank."""
    model = open_model(CHECKPOINT, device="cpu", residency="resident")
    return Bench(model=model, tokens=read_tokens(TOKENS, checkpoint=CHECKPOINT), placement=Placement(), settings={})


def pairs_of(bench: Bench, names: Sequence[str], wanted: Sequence[tuple[str, str]] | None = None) -> list[Pair]:
    """Every pair of `names` (or the `wanted` ones), measured on all tokens, the single choices on a part of them."""
    wanted = list(combinations(names, 2)) if wanted is None else wanted
    sides = {name: bench.side(name) for name in names}
    seconds = {a: [b for first, b in wanted if first == a] for a in names}
    changes = Changes(wanted)
    routes = {a: Routes(a, others) for a, others in seconds.items() if others}
    logits = {a: bench.logits_of(a, others) for a, others in seconds.items() if others}
    bench.walk(sides, [changes, *routes.values(), *logits.values()])
    order = [node.name for node in bench.model.graph.nodes]
    pairs = []
    for first, others in seconds.items():
        differing = {second: toggles(sides[first], sides[second]) for second in others}
        guilty = _guilty(bench.part(), first, sides, differing) if others else {}
        for second in others:
            sums, flips = logits[first].sums(second), routes[first].total(second)
            roots = changes.roots[first, second]
            levels = [_levels(toggle, sides[first], sides[second]) for toggle in differing[second]]
            pairs.append(
                Pair(
                    first=first,
                    second=second,
                    k3=float(sums.k3.sum() / sums.tokens.sum()),
                    kl=float(sums.kl_candidate_reference.sum() / sums.tokens.sum()),
                    flips=flips.set_flips / flips.tokens if flips else 0.0,
                    root=_root(min(roots, key=order.index), differing[second]) if roots else None,
                    choices=len(levels),
                    unsure=sum(UNKNOWN in level for level in levels),
                    opaque=sum(OPAQUE in level for level in levels),
                    guilty=guilty.get(second),
                )
            )
    return pairs


def _root(node: str, differing: Iterable[Toggle]) -> str:
    """A node with the choices that differ there."""
    members = (member for toggle in differing for member in toggle.members)
    names = dict.fromkeys(m.attribute for m in members if m.node.name == node and not m.resting)
    return f"{node}: {', '.join(names)}" if names else node


def _levels(toggle: Toggle, first: Side, second: Side) -> tuple[str, ...]:
    """How sure both profiles are of a choice; a default of the op counts as unknown."""
    settings = (side.plan.settings[member.places[0]] for side in (first, second) for member in toggle.members)
    return tuple(dict.fromkeys(setting.level or UNKNOWN for setting in settings))


def _guilty(
    bench: Bench, first: str, sides: Mapping[str, Side], differing: Mapping[str, Sequence[Toggle]]
) -> dict[str, Guilty]:
    """For each second profile the choice that, taken alone into the first, moves it most; one pass for all."""
    walkers = {name: sides[name] for name in (first, *differing)}
    for second, choices in differing.items():
        for toggle in choices:
            # An op may refuse a mixture of both.
            with suppress(SpecError):
                walkers[f"{second}: {toggle.name}"] = mixed(sides[first], [toggle], sides[second])
    others = [name for name in walkers if name != first]
    logits = bench.logits_of(first, others)
    bench.walk(walkers, [logits])

    def kl(name: str) -> float:
        sums = logits.sums(name)
        return float(sums.kl_candidate_reference.sum() / sums.tokens.sum())

    guilty = {}
    for second, choices in differing.items():
        costs = [(kl(name), toggle) for toggle in choices if (name := f"{second}: {toggle.name}") in walkers]
        most = max(costs, key=lambda cost: cost[0], default=None)
        if most is not None and most[0] > 0:
            cost, toggle = most
            whole = kl(second)
            guilty[second] = Guilty(
                name=toggle.name,
                share=cost / whole,
                levels=_levels(toggle, sides[first], sides[second]),
                rivals=sum(cost >= whole / 2 for cost, its in costs if its is not toggle),
            )
    return guilty


def draws(bench: Bench, name: str) -> bool:
    """Whether a profile adds something up in the order of arrival, of which a pass is one draw."""
    return bool(arrival_draws(bench.side(name)))


@dataclass(slots=True)
class _Kept:
    """Keeps what every walker is scored by."""

    output: str
    parts: dict[str, list[torch.Tensor]]

    def see(self, view: NodeView) -> None:
        if view.node.name == self.output:
            for name in view.outputs:
                self.parts.setdefault(name, []).append(view.tensor(name).clone())


def same_twice(bench: Bench, names: Sequence[str]) -> dict[str, bool]:
    """Whether each profile gives the same log-probabilities when it is run again on its own, bit for bit."""

    def walked(these: Sequence[str]) -> dict[str, torch.Tensor]:
        logits = _Kept(bench.model.graph.scores, {})
        bench.walk({name: bench.side(name) for name in these}, [logits])
        return {name: torch.cat(parts) for name, parts in logits.parts.items()}

    together = walked(names)
    return {name: same_bits(together[name], walked([name])[name]) for name in names}


def batches(bench: Bench, names: Sequence[str], sizes: Sequence[int]) -> dict[tuple[str, int], str | None]:
    """Each profile against itself at other micro-batches: None where all bits are equal, else the first root."""
    sides = {name: bench.side(name) for name in names}
    sides |= {f"{name} x {size}": bench.side(name, size) for name in names for size in sizes}
    changes = Changes([(name, f"{name} x {size}") for name in names for size in sizes])
    bench.walk(sides, [changes])
    order = [node.name for node in bench.model.graph.nodes]
    return {
        (name, size): min(changes.roots[name, f"{name} x {size}"], key=order.index, default=None)
        for name in names
        for size in sizes
    }
