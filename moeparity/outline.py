"""The bound plan as rows to print: nothing is computed and no weight is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity.attribution.toggles import Side, Toggle, toggles
from moeparity.errors import Where, display_path
from moeparity.graph.bind import BoundGraph, attributes_of, bind
from moeparity.graph.config import Config
from moeparity.graph.expand import expand
from moeparity.graph.graph import Graph
from moeparity.graph.profile import load_profile, overrides
from moeparity.spec import files, schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attribute of the nodes that agree in it: `layers[0:4].moe.combine`, its value per side, where it was set."""

    nodes: str
    op: str
    attribute: str
    values: tuple[str, ...]
    origin: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A plan to print; `toggles` is None for a single variant."""

    title: str
    sides: tuple[str, ...]
    rows: tuple[Row, ...]
    toggles: tuple[Toggle, ...] | None


def outline_checkpoint(folder: Path, profile: str) -> Outline:
    """The plan of one profile on a checkpoint's graph. Raises MoeparityError."""
    graph, config = _graph(folder)
    plan = bind(graph, load_profile(profile, Where(Path("--profile"))), _dtype(folder, config))
    title = f"{display_path(folder)} ({graph.model_type}, {graph.layers} layers), profile {profile}, {plan.dtype}"
    return Outline(title=title, sides=("value",), rows=tuple(_rows(graph, [plan])), toggles=None)


def outline_recipe(path: Path) -> Outline:
    """Both plans of a recipe and its toggles. Raises MoeparityError."""
    recipe = files.read_recipe(path)
    folder = files.beside(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    graph, config = _graph(folder)
    reference, candidate = (_side(path, v, graph, folder, config) for v in (recipe.reference, recipe.candidate))
    title = (
        f"{display_path(path)}: {display_path(folder)} ({graph.model_type}, {graph.layers} layers), "
        f"reference {recipe.reference.profile}, candidate {recipe.candidate.profile}"
    )
    return Outline(
        title=title,
        sides=("reference", "candidate"),
        rows=tuple(_rows(graph, [reference.plan, candidate.plan])),
        toggles=tuple(toggles(reference, candidate)),
    )


def _graph(folder: Path) -> tuple[Graph, Config]:
    config = Config(folder / "config.json")
    return expand(config), config


def _dtype(folder: Path, config: Config) -> str:
    if config.dtype is not None:
        return config.dtype
    from moeparity.weights.check import file_dtype
    from moeparity.weights.checkpoint import Checkpoint

    return file_dtype(Checkpoint(folder))


def _side(path: Path, variant: schema.Variant, graph: Graph, folder: Path, config: Config) -> Side:
    where = Where(path, variant.line)
    dtype = variant.dtype or _dtype(folder, config)
    plan = bind(graph, load_profile(variant.profile, where), dtype, overrides(variant.set, where))
    # 0 stands for all sequences: how many there are is not read here.
    return Side(plan=plan, micro_batch=variant.micro_batch or 0)


def _rows(graph: Graph, plans: Sequence[BoundGraph]) -> Iterator[Row]:
    """One row per attribute and group of layers with equal settings, in execution order."""
    layers: dict[tuple[str, str, str, tuple[str, ...], str], list[int]] = {}
    for node in graph.nodes:
        active = [plan.active(node) for plan in plans]
        name = re.sub(r"\[\d+\]", "[]", node.name)
        for attribute in attributes_of(node):
            values = tuple(str(a.get(attribute.name, "-")) for a in active)
            if set(values) == {"-"}:
                continue
            origins = dict.fromkeys(plan.settings[node.name, attribute.name].origin for plan in plans)
            key = (name, node.op.name, attribute.name, values, "; ".join(origins))
            layers.setdefault(key, []).append(-1 if node.layer is None else node.layer)
    for (name, op, attribute_name, values, origin), indices in layers.items():
        nodes = name.replace("[]", f"[{_ranges(indices)}]")
        yield Row(
            nodes=nodes, op=op, attribute=attribute_name, values=values, origin=origin, differs=len(set(values)) > 1
        )


def _ranges(indices: Sequence[int]) -> str:
    """`0:4` for 0, 1, 2, 3; `0:2,3` for 0, 1, 3."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1:
            parts.append(str(indices[start]) if i - start == 1 else f"{indices[start]}:{indices[i - 1] + 1}")
            start = i
    return ",".join(parts)
