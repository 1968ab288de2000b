"""A live process held to a contract: it is refused where it breaks it, and told what it can't show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from moeparity.errors import ContractError, MoeparityError, Where, counted
from moeparity.evidence.weights.layout import WeightLayout
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
from moeparity.ranks.held_weights import gathered, hold_weights
from moeparity.ranks.holding import Breach, Holding, differing, refusal
from moeparity.ranks.launched import Launched, launched
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
    """Hold this process, with all ranks of its job, to a contract; every rank calls it.

    modules: the model, whose parameters lie as `layout` says (None: by the checkpoint's names).
    launch: the file that started the engine, and `role`, which of its sides this is.
    explained: the profile that `moeparity explain` made of a trace of this program.
    extra: further fields of the environment.
    schedule, micro_batch: what the program's own configuration says of its schedule, in a recipe's keys.

    Returns what was kept and what could not be checked. Raises ContractError, with the same words on all ranks, where a
    choice is broken and `refuse` is set, and where the contract or the launch file can't be read.
    """
    place = layout or WeightLayout()
    configured = _Configured(launch, role, explained, schedule, micro_batch)
    claims, started, traced, said = _read(contract, place, configured)
    fields = environment.report(modules, extra)
    held = hold_weights(claims.weights, place, modules)
    held.add(_environment(claims, fields))
    held.add(_profile(claims.profile, fields, started, traced))
    held.add(_placement(claims.placement, place, started))
    held.add(_schedule(claims.schedule, said))
    answers = gathered([str(breach) for breach in held.breaches])
    words = refusal(dict(enumerate(answers)))
    if words is not None and refuse:
        raise ContractError(f"contract of {claims.recipe}, {claims.side}: broken. {words}.")
    return held


@dataclass(frozen=True, slots=True)
class _Configured:
    """What is said of a process that it does not show itself."""

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
        said = None
        if schedule is not None or micro_batch is not None:
            where = Where(Path("schedule="))
            scheduling = None if schedule is None else reader.read_scheduling(schedule, where)
            said = schedule_words(settings(scheduling, micro_batch, None, where))
        read = claims, started, traced, said
    except MoeparityError as error:
        failure = str(error)
    words = refusal({rank: [text] if text else [] for rank, text in enumerate(gathered(failure))})
    if words is not None or read is None:
        raise ContractError(words or failure)
    return read


def _environment(claims: Contract, fields: Mapping[str, str]) -> Holding:
    held = Holding(breaches=differing("environment", claims.environment.fields, fields))
    kept = len(claims.environment.fields) - len(held.breaches)
    if kept:
        held.keep("environment", counted(kept, "field"))
    rest = [name for name in fields if name not in claims.environment.fields]
    if rest:
        held.unchecked.append(f"environment: {counted(len(rest), 'field')} that the contract does not claim")
    return held


def _profile(claim: ProfileClaim, fields: Mapping[str, str], started: Launched | None, traced: Traced) -> Holding:
    """Every choice that the process shows, that a trace of it showed, or that its launch file asks for."""
    held = Holding()
    if started is not None:
        held.breaches += differing("profile", {"dtype": claim.dtype}, {"dtype": started.dtype})
        held.unchecked += [f"launch file: {words}" for words in started.warnings]
    sources = {
        "as the process shows": list(_shown(claim, fields)),
        "as its trace shows": [(node, name, value) for node, own in traced.items() for name, value in own.items()],
        "as the launch file asks": list(_asked(claim, started)),
    }
    for by, here in sources.items():
        held.add(_compared(claim, here, by))
    seen = {(node, choice) for here in sources.values() for node, choice, _ in here}
    rest = [f"{node}:{name}" for node, own in claim.nodes.items() for name in own.choices if (node, name) not in seen]
    if rest:
        held.unchecked.append(f"profile: {counted(len(rest), 'choice')} that nothing here shows: {few(rest, 3)}")
    return held


def _compared(claim: ProfileClaim, here: Iterable[tuple[str, str, str]], by: str) -> Holding:
    """Node, choice and value held to the contract; nodes with the same difference share a breach."""
    held = Holding()
    kept = 0
    apart: dict[tuple[str, str, str], list[str]] = {}
    for node, choice, value in here:
        claimed = claim.nodes[node].choices.get(choice, _NONE) if node in claim.nodes else _NONE
        if claimed == value:
            kept += 1
        else:
            apart.setdefault((choice, claimed, value), []).append(node)
    for (choice, claimed, value), nodes in apart.items():
        more = f" and at {counted(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
        place = f"{nodes[0]}:{choice}{more}"
        held.breaches.append(Breach(section="profile", choice=place, claimed=claimed, here=value, by=by))
    if kept:
        held.keep("profile", f"{counted(kept, 'choice')}, {by}")
    return held


_NONE = "without effect"
"""Where a choice takes no effect, or is not there."""


def _shown(claim: ProfileClaim, fields: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Choices that the environment shows at nodes that have them; what differs by phase is not one value to compare."""
    for choice in shown(fields):
        for node, own in claim.nodes.items():
            if own.op == choice.op and "@" not in own.choices.get(choice.attribute, "@"):
                yield node, choice.attribute, choice.value


def _asked(claim: ProfileClaim, started: Launched | None) -> Iterator[tuple[str, str, str]]:
    """Choices of the plan that a launch file implies, and those of the contract that it has not."""
    if started is None:
        return
    nodes: Iterable[str] = dict.fromkeys((*claim.nodes, *started.nodes))
    nothing = NodeClaim(op="", choices={})
    for node in nodes:
        ours, theirs = claim.nodes.get(node, nothing).choices, started.nodes.get(node, nothing.choices)
        for name in dict.fromkeys((*ours, *theirs)):
            yield node, name, theirs.get(name, _NONE)


def _placement(claim: SettingsClaim, layout: WeightLayout, started: Launched | None) -> Holding:
    """Over how many ranks, by the layout, the launch file and the size of the job."""
    held = Holding()
    here = {name: str(over) for name, (_, over) in layout.ranks.items() if over > 1}
    here |= {} if started is None else started.placement
    claimed = {name: value for name, value in claim.settings.items() if name in here}
    held.breaches += differing("placement", claimed, here)
    if len(claimed) > len(held.breaches):
        held.keep("placement", counted(len(claimed) - len(held.breaches), "setting"))
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    for name, value in claim.settings.items():
        if name in claimed or not value.isdigit():
            continue
        if ranks % int(value):
            held.breaches.append(
                Breach(section="placement", choice=name, claimed=value, here=f"a job of {counted(ranks, 'rank')}")
            )
    rest = [name for name in claim.settings if name not in claimed]
    if rest:
        held.unchecked.append(f"placement: {', '.join(rest)}, but for the number of ranks")
    return held


def _schedule(claim: SettingsClaim, said: Mapping[str, str] | None) -> Holding:
    """What the program says of its own schedule: nothing shows it."""
    held = Holding()
    if said is None:
        held.unchecked.append("schedule: a process does not show it. Say how it is configured: schedule=, micro_batch=")
        return held
    held.breaches += differing("schedule", claim.settings, said)
    kept = len(claim.settings) - len(held.breaches)
    if kept:
        held.keep("schedule", f"{counted(kept, 'setting')}, as the program says")
    return held
