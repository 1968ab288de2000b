"""What was explained, as a profile: the start profile's file extended by rules whose evidence is the trace."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from moeparity.errors import TraceError
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.statements import Statement, agreed, as_number, phases_of
from moeparity.plan.address import pattern, role
from moeparity.plan.schedule.steps import FORWARD

DECIDED, NOT_DECIDED = "verified: trace", "inferred"
"""How sure a choice is that the recorded values decide, and one by which they are explained as others would explain
them.
"""
SHOWN = 3
"""So many of the values that do as well are told of a choice."""


def profile_text(result: Explained, name: str) -> str:
    """The YAML of a profile with the choices that gave every bit, by node. A choice that the values do not decide is
    left out; if the node is explained by it, it is written as `inferred`, with the reason.

    Raises TraceError if a node is not explained; if only a fault or a parameter of the model explains it, which no
    profile can state; or if nothing is known of any node.
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
    for name, phase in _twice(result):
        raise TraceError(
            f"--profile-out: {name} was not computed alike in all forwards of phase {phase}, and a profile states one "
            "way for a phase. Name other nodes with --node."
        )
    for node in result.nodes:
        foreign = sorted(_explaining(node) - {address for address, _ in node.settings})
        if foreign:
            raise TraceError(
                f"--profile-out: {node.node} is explained by {', '.join(foreign)}, which no profile states. Name other "
                "nodes with --node."
            )


def _twice(result: Explained) -> Iterator[tuple[str, str]]:
    """The nodes that have several explanations in one phase."""
    places: set[tuple[str, str]] = set()
    for node in result.nodes:
        for phase in phases_of(node):
            if (node.node, phase) in places:
                yield node.node, phase
            places.add((node.node, phase))


class _Rule(NamedTuple):
    """What is stated at nodes of a role in some phases, and why it is not decided (empty: it is)."""

    role: str
    why: str
    values: tuple[tuple[str, object], ...]
    phases: tuple[str, ...]


def _rules(result: Explained) -> Iterator[Mapping[str, object]]:
    """A rule for the nodes of a role at which the same is stated, and one for each choice that is not decided."""
    places: dict[_Rule, list[tuple[str, int]]] = {}
    for node, statements in agreed(result.nodes, _stated):
        by_node: dict[tuple[str, str], dict[str, object]] = {}
        for statement in statements:
            name, _, attribute = statement.address.rpartition(":")
            # The reader on an edge is of some layer; the rule is for those of all layers.
            by_node.setdefault((name, statement.why), {})[role(attribute)] = as_number(statement.value)
        for (name, why), values in by_node.items():
            rule = _Rule(role(name), why, tuple(values.items()), tuple(phases_of(node)))
            places.setdefault(rule, []).append((name, node.elements))
    # What a forward without a cache showed is stated of all phases, as what profiles say without a phase; not where
    # steps of other phases have a say of their own.
    everywhere = {phase for node in result.nodes for phase in phases_of(node)} == {FORWARD}
    for rule, nodes in places.items():
        elements = f"{result.trace}: {sum(count for _, count in nodes)} elements, all bits equal"
        evidence = {"level": NOT_DECIDED if rule.why else DECIDED, "source": f"{elements}{rule.why}"}
        phases = {} if everywhere else {"phase": list(rule.phases)}
        for selector in pattern([name for name, _ in nodes]).split(", "):
            yield {"nodes": selector, **phases, "set": dict(rule.values), "evidence": evidence}


def _stated(node: Explanation) -> Iterator[Statement]:
    """The choices in effect that are stated."""
    explaining, undecided = _explaining(node), _undecided(node)
    for address, value in node.settings:
        if address not in undecided:
            yield Statement(address, value, "")
        elif address in explaining:
            yield Statement(address, value, f", but {undecided[address]}")


def _explaining(node: Explanation) -> set[str]:
    """The addresses of the choices by which a node is explained; none where the start profile's own do."""
    return {choice.partition("=")[0] for choice in (node.matches[0].choices if node.matches else ())}


def _undecided(node: Explanation) -> dict[str, str]:
    """The addresses of choices that the node's values do not decide as far as was looked, with the reason."""
    reasons: dict[str, list[str]] = {}
    for choice in node.open:
        attribute = role(choice.place).rpartition(":")[2]
        parts = (
            (choice.others, f"{attribute} {' or '.join(choice.others[:SHOWN])} gives them too"),
            (choice.untried, f"{len(choice.untried)} other values were not held against them, as the work was spent"),
            (choice.unread, f"{len(choice.unread)} other values read what was not recorded"),
        )
        reasons[choice.place] = [text for values, text in parts if values]
    for address, text in _by_matches(node):
        reasons.setdefault(address, []).append(text)
    return {address: "; ".join(dict.fromkeys(texts)) for address, texts in reasons.items()}


def _by_matches(node: Explanation) -> Iterator[tuple[str, str]]:
    """The addresses at which a node is explained by other numbers too, or is another combination, and which."""
    if not node.matches:
        return
    match, *others = node.matches
    for numbers in match.between:
        yield numbers.place, f"numbers from {numbers.least:.7g} to {numbers.greatest:.7g} were seen to give them too"
    for further in others:
        for text in {*match.choices} ^ {*further.choices}:
            yield text.partition("=")[0], f"so does {_of_roles(further.choices)}"


def _of_roles(choices: Sequence[str]) -> str:
    return " with ".join(map(role, choices))


def _not_stated(result: Explained) -> str:
    undecided: dict[str, dict[str, None]] = {}
    for node in result.nodes:
        stated = {statement.address for statement in _stated(node)}
        for address in _undecided(node):
            name, _, attribute = role(address).rpartition(":")
            if address not in stated:
                undecided.setdefault(name, {})[attribute] = None
    rest = "what the trace does not show"
    names = "; ".join(f"{name} {', '.join(attributes)}" for name, attributes in undecided.items())
    return f"what its values do not decide ({names}), and {rest}." if undecided else f"{rest}."
