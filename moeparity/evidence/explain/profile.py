"""What was explained, as a profile: the start profile's file extended by rules whose evidence is the trace."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from moeparity.errors import TraceError
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.plan.address import pattern, role

LEVEL = "verified: trace"


def profile_text(result: Explained, name: str) -> str:
    """The YAML of a profile with the choices that gave every bit, by node; what the values do not decide is left out.

    Raises TraceError where a node is not explained, or by a fault or a parameter of the model alone, which no profile
    can state, or where nothing is known of any node.
    """
    _refuse(result)
    start = result.profile
    document = {"kind": "profile", "name": name, "extends": _extended(start), "rules": list(_rules(result))}
    comment = (
        f"What gives the bits of the trace {result.trace}, as `moeparity explain` found it, from {start} on. "
        f"Not stated: {_not_stated(result)}"
    )
    heading = textwrap.fill(comment, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return heading + "\n" + yaml.safe_dump(document, sort_keys=False, width=118, allow_unicode=True).rstrip()


def _extended(profile: str) -> str:
    """A start profile as a file elsewhere names it."""
    return str(Path(profile).resolve()) if "/" in profile or profile.endswith(".yaml") else profile


def _refuse(result: Explained) -> None:
    unexplained = [node.node for node in result.nodes if not node.explained]
    if unexplained:
        raise TraceError(
            f"--profile-out: no choices give the bits of {pattern(unexplained)}, so a profile would state what was "
            "not seen. Name nodes that are explained with --node."
        )
    for node in result.nodes:
        foreign = sorted(_explaining(node) - {address for address, _ in node.settings})
        if foreign or (node.matches and node.matches[0].faults):
            raise TraceError(
                f"--profile-out: {node.node} is explained by {', '.join(foreign) or 'a fault'}, which no profile "
                "states. Name other nodes with --node."
            )


def _rules(result: Explained) -> Iterator[Mapping[str, object]]:
    """A rule for the nodes of a role that were made alike."""
    groups: dict[tuple[object, ...], list[Explanation]] = {}
    for node in result.nodes:
        alike = tuple(sorted((role(address), value) for address, value in _decided(node).items()))
        groups.setdefault((role(node.node), alike), []).append(node)
    for nodes in groups.values():
        by_node: dict[str, dict[str, object]] = {}
        for address, value in _decided(nodes[0]).items():
            name, _, attribute = address.rpartition(":")
            by_node.setdefault(name, {})[attribute] = _scalar(value)
        for name, values in by_node.items():
            places = [name.replace(f"layers[{nodes[0].node_layer}]", f"layers[{node.node_layer}]") for node in nodes]
            source = f"{result.trace}: {sum(node.elements for node in nodes)} elements, all bits equal"
            yield from (
                {"nodes": selector, "set": values, "evidence": {"level": LEVEL, "source": source}}
                for selector in pattern(places).split(", ")
            )


def _decided(node: Explanation) -> dict[str, str]:
    """The choices in effect that the node's values decide, and those by which they are explained, by address."""
    undecided = {choice.place for choice in node.open} - _explaining(node)
    return {address: value for address, value in node.settings if address not in undecided}


def _explaining(node: Explanation) -> set[str]:
    """The addresses of the choices by which a node is explained; none where the start profile's own do."""
    return {choice.partition("=")[0] for choice in (node.matches[0].choices if node.matches else ())}


def _not_stated(result: Explained) -> str:
    undecided: dict[str, dict[str, None]] = {}
    for node in result.nodes:
        for choice in node.open:
            name, _, attribute = role(choice.place).rpartition(":")
            undecided.setdefault(name, {})[attribute] = None
    rest = "what the trace does not show"
    names = "; ".join(f"{name} {', '.join(attributes)}" for name, attributes in undecided.items())
    return f"what its values do not decide ({names}), and {rest}." if undecided else f"{rest}."


def _scalar(value: str) -> object:
    """A value as YAML writes it: a number where it is one."""
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value
