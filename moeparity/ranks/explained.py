"""Puts what `moeparity explain` found of a process's own trace into the words of a contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moeparity.errors import ContractError, Where
from moeparity.plan.bind import bind
from moeparity.plan.choices import choices
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.ranks.contract import ProfileClaim

_DECIDED: Final = "verified: trace"
"""The evidence of a choice that recorded values decide."""


def explained(path: Path, checkpoint: Path | None, claim: ProfileClaim) -> Mapping[str, Mapping[str, str]]:
    """node -> the choices that a trace decides, from the profile that `moeparity explain --profile-out` wrote.

    Raises ContractError for a profile without any such choice, SpecError for a file that is no profile.
    """
    if checkpoint is None:
        raise ContractError("explained=: its choices are those of a graph. Give layout=WeightLayout(CHECKPOINT) too.")
    graph = expand(Config(checkpoint / "config.json"))
    profile = load_profile(str(path.resolve()), Where(path))
    plan = bind(graph, profile, claim.dtype, phases=claim.phases)
    nodes = {
        node.name: {c.name: c.values[0] for c in choices(node, (plan,)) if c.evidence == _DECIDED}
        for node in graph.nodes
    }
    if not any(nodes.values()):
        raise ContractError(
            f"{Where(path)}: no choice in it is `{_DECIDED}`. Name what `moeparity explain TRACE --profile-out` wrote."
        )
    return nodes
