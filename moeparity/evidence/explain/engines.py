"""What each engine's shipped profile sets at nodes that are to be explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, Where
from moeparity.evidence.explain.replaced import Choice, Choices, Replaced
from moeparity.evidence.explain.vocabulary import listed_choices
from moeparity.ops.attribute import Value
from moeparity.plan.bind import settings_of
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.plan.graph import Graph
from moeparity.plan.latest import Latest
from moeparity.plan.rule import NO_ENGINE
from moeparity.plan.setting import Place, Setting

ByNode = Mapping[str, Mapping[Place, Setting]]

# Of the whole graph, so that a fused kernel is seen that ends behind the nodes in question; once for all of these.
_LATEST: Final[Latest[tuple[ByNode, ...]]] = Latest(4)
_CHOICES: Final[Latest[tuple[Choices, ...]]] = Latest(16)


def profiles_choices(replaced: Replaced) -> tuple[Choices, ...]:
    """What each engine's shipped profile sets otherwise at the nodes; equal ones once, the small first."""
    return _CHOICES.of((replaced,), None, lambda: _profiles_choices(replaced))


def known_choices(replaced: Replaced, plan: Plan) -> Iterator[Choice]:
    """Every value that is listed or that a shipped profile sets at a node, if it makes the node compute something else
    than `plan` does in some phase.
    """
    nodes = {node.name: node for node in replaced.nodes if node.name not in replaced.recorded}
    listed = dict.fromkeys(listed_choices(replaced, plan))
    yield from listed
    for choice in dict.fromkeys(
        choice for choices in profiles_choices(replaced) for choice in sorted(choices, key=str)
    ):
        (name, attribute), value = choice
        if choice not in listed and name in nodes:
            active = [bound.active(nodes[name]) for bound in plan.distinct]
            if any(attribute in values and values[attribute] != value for values in active):
                yield choice


def _profiles_choices(replaced: Replaced) -> tuple[Choices, ...]:
    graph, dtype = replaced.plan.graph.whole, replaced.plan.dtype
    of_profiles = _LATEST.of((graph,), dtype, lambda: tuple(_of_profiles(graph, dtype)))
    names = {node.name for node in replaced.nodes}.union(name for name, _ in replaced.makers)
    # Most profiles set a node alike.
    distinct = {tuple(id(by_node[name]) for name in names): by_node for by_node in of_profiles}.values()
    at_nodes = ({place: values for name in names for place, values in by_node[name].items()} for by_node in distinct)
    choices = {replaced.as_chosen(settings) for settings in at_nodes}
    return tuple(sorted((c for c in choices if c), key=lambda c: (len(c), sorted(map(str, c)))))


def _of_profiles(graph: Graph, dtype: str) -> Iterator[ByNode]:
    """By node, the settings of each profile whose rules fit the graph. Profiles that set a node alike share one mapping
    for it, so that they can be told to be alike by identity.
    """
    latest: dict[frozenset[tuple[Place, Value, type]], dict[Place, Setting]] = {}
    for profile in _profiles():
        try:
            settings = settings_of(graph, profile, dtype)
        except MoeparityError:
            # Its selectors name nodes of other models.
            continue
        by_node: dict[str, dict[Place, Setting]] = {}
        for place, setting in settings.items():
            by_node.setdefault(place[0], {})[place] = setting
        for name, at_node in by_node.items():
            values = ((place, setting.value, type(setting.value)) for place, setting in at_node.items())
            by_node[name] = latest.setdefault(frozenset(values), at_node)
        yield by_node


@cache
def _profiles() -> tuple[Profile, ...]:
    profiles = (load_profile(name, Where(Path(name))) for name in shipped("profiles"))
    return tuple(profile for profile in profiles if profile.engine is not None and profile.engine.name != NO_ENGINE)
