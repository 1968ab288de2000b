"""Puts what a launch file asks an engine to run into the words of a contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeparity.errors import ContractError, Where, listed
from moeparity.plan.bind import bind
from moeparity.plan.choices import choices
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.engine_profile import placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Placement
from moeparity.profiles.launch import read
from moeparity.profiles.launch.merged_profile import combined, load_combined
from moeparity.profiles.launch.report import Launch, LaunchSide


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The side of a launch file that this process is. nodes: by node, its choices with their values.

    warnings: options that decide numerics and of which no profile says how.
    """

    dtype: str
    placement: Mapping[str, str]
    nodes: Mapping[str, Mapping[str, str]]
    warnings: tuple[str, ...]


def launched(path: Path, role: str | None, checkpoint: Path | None, phases: tuple[str, ...]) -> Launched:
    """What a launch file implies for the checkpoint's graph. Raises ContractError, SpecError, CheckpointError."""
    if checkpoint is None:
        raise ContractError("launch=: its choices are those of a graph. Give layout=WeightLayout(CHECKPOINT) too.")
    launch = read(path, checkpoint)
    side = _side(path, launch, role)
    config = Config(checkpoint / "config.json")
    graph = expand(config)
    where = Where(path)
    placement = reader.read_placement(dict(side.placement), where)
    plan = bind(
        graph,
        load_combined(combined(side, launch, "launched")),
        side.dtype or config.dtype or UNDECLARED_DTYPE,
        placement=placement_rules(placement, where),
        phases=phases,
    )
    return Launched(
        dtype=plan.dtype,
        placement=placement_words(placement, graph),
        nodes={node.name: {c.name: c.values[0] for c in choices(node, (plan,))} for node in graph.nodes},
        warnings=tuple(f"{warning.name or warning.where}: {warning.says}" for warning in launch.warnings),
    )


def placement_words(placement: Placement, graph: Graph) -> dict[str, str]:
    """Every setting of a placement, in the words of a contract; for pipeline stages, how many layers each has."""
    pipeline = placement.pipeline_stages
    sizes = () if pipeline is None else pipeline.sizes(graph.layers)
    words = {name: str(value).lower() for name, value in placement.model_dump().items()}
    return words | {"stages": ", ".join(map(str, sizes)) or "none"}


def _side(path: Path, launch: Launch, role: str | None) -> LaunchSide:
    roles = [side.role for side in launch.sides]
    if role is None and len(roles) == 1:
        role = roles[0]
    if roles.count(role or "") != 1:
        raise ContractError(
            f"{Where(path)}: it starts {listed(roles)}; role is {role!r}. Say which of them this process is."
        )
    side = launch.sides[roles.index(role or "")]
    if not side.profile:
        raise ContractError(
            f"{Where(path)}: no shipped profile speaks of its {role}, so that nothing it asks for can be held."
        )
    return side
