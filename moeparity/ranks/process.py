"""Compares a live process with a contract. A process that breaks the contract is refused; what it can't show is
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from moeparity.errors import ContractError, MoeparityError, Where, counted
from moeparity.evidence.weights.weight_layout import WeightLayout
from moeparity.output.words import few
from moeparity.plan.schedule.settings import settings
from moeparity.plan.spec import reader
from moeparity.ranks import environment
from moeparity.ranks.contract import (
    Contract,
    NodeClaim,
    ProfileClaim,
    SettingsClaim,
    read_contract,
    schedule_words,
)
from moeparity.ranks.explained import explained as trace_choices
from moeparity.ranks.holding import Breach, Holding, differing, refusal
from moeparity.ranks.launched import Launched, launched
from moeparity.ranks.process_weights import gathered, hold_weights
from moeparity.ranks.shown import shown


def hold(
    contract: str | Path | Contract,
    *modules: nn.Module,
    layout: WeightLayout | None = None,
    launch: str | Path | None = None,
    role: str | None = None,
    explained: str | Path | None = None,
    extra: Mapping[str, str] | None = None,
    schedule: Mapping[str, Any] | None = None,
    micro_batch: int | None = None,
    refuse: bool = True,
) -> Holding:
    """Compare this process, with all ranks of its job, with a contract; every rank has to call it.

    modules: the model, whose parameters lie as `layout` says (None: by the checkpoint's names).
    launch: the file that started the engine; role: which of its sides this process is.
    explained: the profile that `moeparity explain` made of a trace of this program.
    extra: further fields of the environment.
    schedule, micro_batch: the program's own configuration of its schedule, in a recipe's keys.

    Returns what was kept and what could not be checked. Raises ContractError, with the same words on all ranks, if a
    choice is broken and `refuse` is set, and if the contract or the launch file can't be read.
    """
    place = layout or WeightLayout()
    configured = _Configured(launch, role, explained, schedule, micro_batch)
    claims, started, traced, scheduling = _read(contract, place, configured)
    fields = environment.report(modules, extra)
    holding = hold_weights(claims.weights, place, modules)
    holding.add(_environment(claims, fields))
    holding.add(_profile(claims.profile, fields, started, traced))
    holding.add(_placement(claims.placement, place, started))
    holding.add(_schedule(claims.schedule, scheduling))
    answers = gathered([str(breach) for breach in holding.breaches])
    words = refusal(dict(enumerate(answers)))
    if words is not None and refuse:
        raise ContractError(f"contract of {claims.recipe}, {claims.side}: broken. {words}.")
    return holding


@dataclass(frozen=True, slots=True)
class _Configured:
    """What the caller says of a process that the process does not show itself."""

    launch: str | Path | None
    role: str | None
    explained: str | Path | None
    schedule: Mapping[str, Any] | None
    micro_batch: int | None


Traced = Mapping[str, Mapping[str, str]]
Read = tuple[Contract, Launched | None, Traced, Mapping[str, str] | None]


def _read(contract: str | Path | Contract, layout: WeightLayout, configured: _Configured) -> Read:
    """The contract, what a launch file asks for, what a trace showed, and what the program says of its schedule.

    A rank that can't read them tells the others, so that none waits for it.
    """
    schedule, micro_batch = configured.schedule, configured.micro_batch
    read: Read | None = None
    failure = ""
    try:
        claims = contract if isinstance(contract, Contract) else read_contract(Path(contract))
        started = None
        if configured.launch is not None:
            phases = claims.profile.phases
            started = launched(Path(configured.launch), configured.role, layout.checkpoint, phases)
        traced: Traced = {}
        if configured.explained is not None:
            traced = trace_choices(Path(configured.explained), layout.checkpoint, claims.profile)
        scheduled = None
        if schedule is not None or micro_batch is not None:
            where = Where(Path("schedule="))
            scheduling = None if schedule is None else reader.read_scheduling(schedule, where)
            scheduled = schedule_words(settings(scheduling, micro_batch, None, where))
        read = claims, started, traced, scheduled
    except MoeparityError as error:
        failure = str(error)
    words = refusal({rank: [text] if text else [] for rank, text in enumerate(gathered(failure))})
    if words is not None or read is None:
        raise ContractError(words or failure)
    return read


def _environment(claims: Contract, fields: Mapping[str, str]) -> Holding:
    holding = Holding(breaches=differing("environment", claims.environment.fields, fields))
    kept_count = len(claims.environment.fields) - len(holding.breaches)
    if kept_count:
        holding.keep("environment", counted(kept_count, "field"))
    rest = [name for name in fields if name not in claims.environment.fields]
    if rest:
        holding.unchecked.append(f"environment: {counted(len(rest), 'field')} that the contract does not claim")
    return holding


def _profile(claim: ProfileClaim, fields: Mapping[str, str], started: Launched | None, traced: Traced) -> Holding:
    """Compare every choice that the process shows, that a trace of it showed, or that its launch file asks for."""
    holding = Holding()
    if started is not None:
        holding.breaches += differing("profile", {"dtype": claim.dtype}, {"dtype": started.dtype})
        holding.unchecked += [f"launch file: {words}" for words in started.warnings]
    sources = {
        "as the process shows": list(_shown(claim, fields)),
        "as its trace shows": [
            (node, name, value) for node, choices in traced.items() for name, value in choices.items()
        ],
        "as the launch file asks": list(_disagreements(claim, started)),
    }
    for by, triples in sources.items():
        holding.add(_compared(claim, triples, by))
    shown_places = {(node, choice) for triples in sources.values() for node, choice, _ in triples}
    rest = [
        f"{node}:{name}"
        for node, node_claim in claim.nodes.items()
        for name in node_claim.choices
        if (node, name) not in shown_places
    ]
    if rest:
        holding.unchecked.append(f"profile: {counted(len(rest), 'choice')} that nothing here shows: {few(rest, 3)}")
    return holding


def _compared(claim: ProfileClaim, shown: Iterable[tuple[str, str, str]], by: str) -> Holding:
    """Compare (node, choice, value) with the contract; nodes with the same difference share a breach."""
    holding = Holding()
    kept_count = 0
    apart: dict[tuple[str, str, str], list[str]] = {}
    for node, choice, value in shown:
        claimed = claim.nodes[node].choices.get(choice, _NONE) if node in claim.nodes else _NONE
        if claimed == value:
            kept_count += 1
        else:
            apart.setdefault((choice, claimed, value), []).append(node)
    for (choice, claimed, value), nodes in apart.items():
        more = f" and at {counted(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
        place = f"{nodes[0]}:{choice}{more}"
        holding.breaches.append(Breach(section="profile", choice=place, claimed=claimed, present=value, by=by))
    if kept_count:
        holding.keep("profile", f"{counted(kept_count, 'choice')}, {by}")
    return holding


_NONE = "without effect"
"""The value of a choice that takes no effect or does not exist."""


def _shown(claim: ProfileClaim, fields: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Choices that the environment shows, at nodes that have them. A claim that differs by phase is left out, since the
    environment shows one value.
    """
    for choice in shown(fields):
        for node, node_claim in claim.nodes.items():
            if node_claim.op == choice.op and "@" not in node_claim.choices.get(choice.attribute, "@"):
                yield node, choice.attribute, choice.value


def _disagreements(claim: ProfileClaim, started: Launched | None) -> Iterator[tuple[str, str, str]]:
    """Choices that a launch file implies and that differ from the contract, or that only one of them has."""
    if started is None:
        return
    nodes: Iterable[str] = dict.fromkeys((*claim.nodes, *started.nodes))
    nothing = NodeClaim(op="", choices={})
    for node in nodes:
        ours, theirs = claim.nodes.get(node, nothing).choices, started.nodes.get(node, nothing.choices)
        for name in dict.fromkeys((*ours, *theirs)):
            yield node, name, theirs.get(name, _NONE)


def _placement(claim: SettingsClaim, layout: WeightLayout, started: Launched | None) -> Holding:
    """Compare the number of ranks, by the layout, the launch file and the size of the job."""
    holding = Holding()
    own_settings = {name: str(over) for name, (_, over) in layout.ranks.items() if over > 1}
    own_settings |= {} if started is None else started.placement
    claimed = {name: value for name, value in claim.settings.items() if name in own_settings}
    holding.breaches += differing("placement", claimed, own_settings)
    if len(claimed) > len(holding.breaches):
        holding.keep("placement", counted(len(claimed) - len(holding.breaches), "setting"))
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    for name, value in claim.settings.items():
        if name in claimed or not value.isdigit():
            continue
        if ranks % int(value):
            holding.breaches.append(
                Breach(section="placement", choice=name, claimed=value, present=f"a job of {counted(ranks, 'rank')}")
            )
    rest = [name for name in claim.settings if name not in claimed]
    if rest:
        holding.unchecked.append(f"placement: {', '.join(rest)}, but for the number of ranks")
    return holding


def _schedule(claim: SettingsClaim, own_words: Mapping[str, str] | None) -> Holding:
    """Compare what the program says of its own schedule, which nothing else shows."""
    holding = Holding()
    if own_words is None:
        holding.unchecked.append(
            "schedule: a process does not show it. Say how it is configured: schedule=, micro_batch="
        )
        return holding
    holding.breaches += differing("schedule", claim.settings, own_words)
    kept_count = len(claim.settings) - len(holding.breaches)
    if kept_count:
        holding.keep("schedule", f"{counted(kept_count, 'setting')}, as the program says")
    return holding
