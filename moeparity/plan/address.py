"""Addresses: `layers[0].moe.router:weights` names one attribute of one node; a selector names several nodes at once.

`layers[*]`, `layers[3:61]`, `layers[-1]` and lists like `layers[0,2:4]` select by absolute index, `*` stands for
anything without a dot, `**` for anything at all. A file key writes `layers.0.moe.router` for `layers[0].moe.router`;
both are read. `@decode` or `@decode,verify` behind an attribute restricts it to these phases of a schedule;
`@decode[keys 1024:]` restricts it to the decode steps with 1024 keys or more (`moeparity.plan.schedule.cases`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from moeparity.errors import GraphError, Where, did_you_mean, listed
from moeparity.plan.schedule.cases import WRITTEN, Case, parse, write
from moeparity.plan.schedule.steps import PHASES

_INDEX = re.compile(r"\[([^\]]*)\]|\.(\d+)(?=\.|$)")


def select(selector: str, names: Iterable[str], layers: int, where: Where) -> list[str]:
    """The names a selector stands for, in their order. Raises GraphError where it matches nothing or is malformed."""
    names = list(names)
    pattern = _pattern(selector, layers, where)
    matches = [name for name in names if pattern.fullmatch(name)]
    if not matches:
        index = _INDEX.search(selector)
        hint = did_you_mean(_INDEX.sub("[0]", selector), names).replace("[0]", index[0] if index else "[0]")
        raise GraphError(f"{where}: selector {selector!r} matches no node.{hint} `moeparity show plan` lists them.")
    return matches


PHASE = "@"
"""The character between an attribute and the phases it is restricted to."""


def split(address: str, where: Where) -> tuple[str, str, tuple[Case, ...] | None]:
    """`selector:attribute@cases` or `selector:site->selector` -> selector, attribute, cases (None: all).

    Raises GraphError where there is no attribute, or where what follows `@` is not a valid case.
    """
    name, at, cases = address.partition(PHASE)
    # A slice holds a colon of its own, so the attribute is what follows the last colon outside brackets.
    match = re.fullmatch(r"((?:[^\[\]:]|\[[^\]]*\])+):([a-z0-9_]+(?:->.+)?)", name)
    if match is None:
        raise GraphError(
            f'{where}: {address!r} names no attribute; expected `node:attribute`, as in "layers[*].moe.gate:output".'
        )
    return match[1], match[2], _cases(cases, address, where) if at else None


def _cases(text: str, address: str, where: Where) -> tuple[Case, ...]:
    cases: list[Case] = []
    # A comma inside brackets separates the numbers of one case; only commas outside separate cases.
    for name in re.split(r",(?![^\[]*\])", text):
        phase, _, _ = name.strip().partition("[")
        if phase not in PHASES:
            raise GraphError(
                f"{where}: {address!r} names the phase {phase!r}; expected one of {listed(PHASES)}."
                f"{did_you_mean(phase, PHASES)}"
            )
        try:
            cases.append(write(*parse(name)))
        except ValueError as error:
            raise GraphError(
                f"{where}: {address!r} has {str(error)!r} behind {phase}; expected one of {listed(WRITTEN)} with "
                f"the numbers that are meant, as in {phase}[keys 1024:]."
            ) from None
    return tuple(sorted(dict.fromkeys(cases), key=lambda case: PHASES.index(parse(case)[0])))


def file_key(name: str) -> str:
    """`layers[0].moe.router` -> `layers.0.moe.router`, the key used in safetensors files."""
    return re.sub(r"\[(\d+)\]", r".\1", name)


def _pattern(selector: str, layers: int, where: Where) -> re.Pattern[str]:
    parts: list[str] = []
    for token in re.findall(r"\[[^\]]*\]|\.\d+(?=\.|$)|\*\*|\*|[^\[*.]+|.", selector):
        if token.startswith("["):
            parts.append(_indices(token[1:-1], layers, selector, where))
        elif re.fullmatch(r"\.\d+", token):
            parts.append(re.escape(f"[{token[1:]}]"))
        else:
            parts.append({"**": ".*", "*": "[^.]*"}.get(token, re.escape(token)))
    return re.compile("".join(parts))


def _indices(text: str, layers: int, selector: str, where: Where) -> str:
    """A regular expression for the layer indices that `*` or a list of `3`, `-1` and `a:b` stands for."""
    if text == "*":
        return r"\[\d+\]"
    indices = [index for part in text.split(",") for index in _index_range(part.strip(), layers, selector, where)]
    if not indices:
        raise GraphError(f"{where}: [{text}] in {selector!r} selects no layer; the model has layers 0 to {layers - 1}.")
    return rf"\[(?:{'|'.join(map(str, indices))})\]"


def _index_range(text: str, layers: int, selector: str, where: Where) -> range:
    match = re.fullmatch(r"(-?\d{1,9})|(-?\d{1,9})?:(-?\d{1,9})?", text)
    if match is None:
        raise GraphError(
            f"{where}: [{text}] in {selector!r} is no index; expected *, a layer number, a slice like 3:61, or a list "
            "of them."
        )
    if match[1] is not None:
        index = int(match[1])
        return range(layers)[index : index + 1 or None] if -layers <= index < layers else range(0)
    return range(layers)[slice(*(int(end) if end else None for end in (match[2], match[3])))]


def pattern(names: Iterable[str]) -> str:
    """Selectors that stand for exactly these nodes, joined by commas: `layers[0:4].moe.norm, norm`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        index = re.search(r"\[(\d+)\]", name)
        layers.setdefault(role(name), []).append(-1 if index is None else int(index[1]))
    return ", ".join(role.replace("[*]", f"[{ranges(sorted(indices))}]") for role, indices in layers.items())


def role(name: str) -> str:
    """A node's name with `*` for its layer."""
    return re.sub(r"\[\d+\]", "[*]", name)


def ranges(indices: Sequence[int]) -> str:
    """Ascending indices as slices: `0:4` for 0, 1, 2, 3; `0:2,3` for 0, 1, 3."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1:
            parts.append(str(indices[start]) if i - start == 1 else f"{indices[start]}:{indices[i - 1] + 1}")
            start = i
    return ",".join(parts)
