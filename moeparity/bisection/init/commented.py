"""Launched sides as text of a recipe, with a comment on each value that was taken or left out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from moeparity import paths
from moeparity.bisection.init.launched_side import REFERENCE, Launched
from moeparity.plan.address import role
from moeparity.plan.graph import Graph
from moeparity.profiles.launch.report import Launch, LaunchSide

_WIDTH = 116
_MERGED: Mapping[str, Mapping[str, str]] = {
    "linear": {"adapter": "merged"},
    "experts": {"adapter": "merged", "adapter_inputs": "fp32", "adapter_product": "fp32"},
}
"""By op, what peft's `merge_and_unload` makes of an adapter."""


def comments(lines: Sequence[str], indent: str = "") -> str:
    """Lines as wrapped comments of a recipe; "" for no lines."""
    first, further = f"{indent}# ", f"{indent}#   "
    # Paths and options stay whole, so that they can be searched for.
    marked = (
        textwrap.wrap(
            line,
            _WIDTH,
            initial_indent=first,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    return "".join(f"{line}\n" for wrapped in marked for line in wrapped)


def side_block(name: str, words: Sequence[str], side: LaunchSide, profile: str, dtype: str) -> str:
    """One side of the recipe, with comments on each value that was taken or left out."""
    lines = [f"{name}:", comments(words, "  ").rstrip("\n"), f"  profile: {profile}"]
    if side.placement:
        inner = ", ".join(f"{axis}: {json.dumps(ranks)}" for axis, ranks in side.placement.items())
        lines.append(f"  placement: {{{inner}}}")
    lines += [f"  dtype: {dtype}", "  micro_batch: 8"]
    if side.selects:
        lines += ["  set:", *(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in side.selects.items())]
    return "\n".join(lines)


def used_lines(launched: Launched, dtype: str) -> Iterator[str]:
    """What of a launch file its side was made of, with the lines of the file."""
    launch, side = launched.launch, launched.side
    if side.role == REFERENCE:
        yield "No other side is launched: this one is compared with transformers with eager attention."
        return
    yield f"The {launched.role}: {_program(launch)}, {launch.basis}."
    yield from _ran(launch)
    for setting in launch.settings:
        if setting.given and setting.role == side.role:
            yield f"{setting.where}: {setting.name} {setting.value}: {setting.implies}"
    for decision in launch.decisions:
        if decision.role == side.role:
            yield f"{launch.engine} decides: {decision.says} [{decision.source}]"
    for name in (*side.further, *side.sets, *side.selects):
        if name in side.origins:
            yield f"{name}: by {side.origins[name]}"
    yield f"dtype {side.dtype or dtype}: by {side.origins.get('dtype', 'the checkpoint')}"


def adapter_lines(launched: Launched, graph: Graph) -> Iterator[str]:
    """What to write where a side that starts no adapter has it merged, or has none."""
    if not graph.adapted or launched.adapts or launched.side.role == REFERENCE:
        return
    roles = dict.fromkeys((role(node.name), node.op.name) for node in graph.adapted)
    merged = [f'"{name}:{choice}": {value}' for name, op in roles for choice, value in _MERGED[op].items()]
    yield (
        f"{launched.launch.file} starts no adapter, and this side computes it beside the weights. If it was sent "
        f"weights that hold it, add `set: {{{', '.join(merged)}}}`; if it has none, add "
        "`faults: [{name: adapter-missing}]`."
    )


def _program(launch: Launch) -> str:
    """The program, and the release whose options were read; an engine that resolved them says its own."""
    return launch.engine if launch.resolved_by else f"{launch.engine} {launch.version}"


def _ran(launch: Launch) -> Iterator[str]:
    """How to take the steps and tokens that an engine wrote beside what it resolved."""
    file = Path(launch.file)
    steps, tokens = (file.with_suffix(f".{kind}.jsonl") for kind in ("schedule", "tokens"))
    if launch.resolved_by and paths.is_file(steps) and paths.is_file(tokens):
        yield (
            f"To take the steps that it ran, replace `micro_batch` by `schedule: {{file: {steps}}}`, and the tokens "
            f"above by `tokens: {{file: {tokens}, sampled_from: candidate}}`."
        )


def unused_lines(launch: Launch) -> Iterator[str]:
    """What of a launch file says nothing of log-probabilities here."""
    for key in launch.irrelevant:
        yield f"{key.where}: {key.name} is left out: {key.hint or 'it changes no log-probability'}"
    for key in launch.together:
        yield f"{key.where}: {key.name} is left out: which tokens are computed together, `micro_batch` says here"
    for key in launch.ignored:
        yield f"{key.where}: {key.name} is left out: it was not looked at"
