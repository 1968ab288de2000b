"""Hypotheses on how a side misread the tokens: left off, given twice, seen by other sequences, at other positions, with
keys of older weights, recorded beside the wrong token, or recorded of a truncated distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from torch import Tensor

from moeparity.doctor.hypotheses import (
    ALL_STALE,
    Hypothesis,
    Number,
    Plant,
    of_older,
    stale_parts_of,
    weighted,
)
from moeparity.doctor.readings import Cut, Packs, Prompts, Rows, Shift, Split
from moeparity.metrics.replay import Replay, Trap, displaced, incomplete, leading_dense
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import Phase

IN_ONE_PHASE: Final[dict[Phase, str]] = {"prefill": " in prompts alone", "chunk": " in decoding alone"}
"""The endings of names of mistakes in one kind of steps."""
_DROPPED = (1, 2, 3, 4, 8)
_PACKED = (2, 4, 8)
_LONG = 4
"""A prompt of at least this many tokens tells a mistake in prompts from one in responses."""
_SHIFTS = (-2, -1, 1, 2)
_PREFIXES = sorted(share << power for power in range(1, 12) for share in (2, 3))
"""Powers of two and what lies between two of them: a prefix cache holds whole blocks."""
_CUTS: dict[str, tuple[float, ...]] = {
    "top_k": (5, 10, 20, 40, 50, 100),
    "top_p": (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99),
    "min_p": (0.01, 0.02, 0.05, 0.1, 0.2),
}


def misread(graph: Graph, previous: Path | None, prompts: Prompts) -> Iterator[Hypothesis]:
    """All hypotheses that are possible with these tokens."""
    yield from _rows(prompts)
    for running in (False, True):
        for count in dict.fromkeys(min(count, prompts.grid.sequences) for count in _PACKED):
            yield _packs(count, running=running)
    yield from map(_shift, _SHIFTS)
    for by, values in _CUTS.items():
        yield from (_cut(by, value) for value in values)
    if prompts.shortest > 1:
        yield from _in_two_steps(graph)
    if previous is not None:
        yield from _older(graph, previous, prompts)


def in_one_phase(of: Hypothesis, prompts: Prompts) -> Iterator[Hypothesis]:
    """The same mistake in the prompt alone and in the response alone, if prompts are long enough to tell."""
    is_stale = any(plant.fault.name in ALL_STALE for plant in of.plants)
    is_mistake = of.plants and not is_stale and of.reading is None and of.number is None
    for phase, ending in IN_ONE_PHASE.items() if is_mistake and prompts.shortest >= _LONG else ():
        yield replace(
            of,
            name=f"{of.name}{ending}",
            says=f"{of.says},{ending}",
            plants=tuple(replace(plant, phase=phase) for plant in of.plants),
            plainness=of.plainness + 1,
            reading=Split(),
        )


def replays(prompts: Prompts, graph: Graph, recorded: Tensor) -> Iterator[Hypothesis]:
    """Routers that take over the log's routes, as they stand there, at another place, or for some tokens alone.

    recorded: int64 [B, T, MoE layers, top_k], -1 where there is no record; engines have none of the last token.
    """
    grid = prompts.grid
    routed = [node.layer for node in graph.nodes if node.op.role.routes and node.layer is not None]
    meant = "nothing, if it is to replay routes; else switch the replay off"
    whole = Trap(name="", says="took over the experts that the log has", replay=Replay())
    yield _replay("replayed routes", whole, meant)
    pads = len({grid.tokens(row) for row in range(grid.sequences)}) > 1
    for trap in displaced(layers=len(routed), pads=pads, furthest=max(_SHIFTS)):
        advice = "align the routes that it replays with its own tokens and MoE layers"
        yield _replay(f"replayed routes of {trap.name}", trap, advice)
    lengths = [count for count in _PREFIXES if prompts.shortest <= count < prompts.length]
    gaps = any(bool((recorded[row, a : b - 1] < 0).any()) for row, (a, b) in enumerate(grid.spans))
    for trap in incomplete(dense=leading_dense(routed), prompts=prompts.shortest > 1, lengths=lengths, gaps=gaps):
        advice = "replay whole routes: compare their number with the tokens', and each expert's weight with its slot"
        yield _replay(f"replayed routes, {trap.name}", trap, advice)


def _replay(name: str, trap: Trap, change: str) -> Hypothesis:
    return Hypothesis(name=name, says=trap.says, change=change, reading=trap.replay)


def _rows(prompts: Prompts) -> Iterator[Hypothesis]:
    advice = "compare the token ids that this side was given with the log's: template, BOS, the cut after the prompt"
    # The first token and those left off have no value of their own, so the log may count them as prompt or not.
    for count in (count for count in _DROPPED if count < prompts.length - 1):
        yield Hypothesis(
            name="first token missing" if count == 1 else f"first {count} tokens missing",
            says="never saw the first token" if count == 1 else f"never saw the first {count} tokens",
            change=advice,
            reading=Rows(dropped=count),
            number=Number(family="first tokens missing", name="tokens", value=count),
        )
    yield Hypothesis(name="prompt missing", says="never saw the prompt", change=advice, reading=Rows(dropped="prompt"))
    yield Hypothesis(
        name="first token twice", says="was given the first token twice", change=advice, reading=Rows(repeated="first")
    )
    if prompts.shortest > 1:
        yield Hypothesis(
            name="last token of the prompt twice",
            says="was given the last token of the prompt twice",
            change=advice,
            reading=Rows(repeated="prompt"),
        )


def _packs(count: int, *, running: bool) -> Hypothesis:
    family = "packing without its mask" + (", positions running" if running else "")
    return Hypothesis(
        name=f"{family}, {count} sequences",
        says=f"computed packs of {count} sequences in which each sees those before it",
        change="give attention the borders of the sequences: cu_seqlens, a block-diagonal mask, or position_ids that "
        "start anew at each",
        reading=Packs(sequences=count, running=running),
        number=Number(family=family, name="sequences", value=count),
    )


def _shift(by: int) -> Hypothesis:
    return Hypothesis(
        name=f"values {abs(by)} {'late' if by < 0 else 'early'}",
        says=f"recorded each value beside the token {abs(by)} {'after' if by < 0 else 'before'} its own",
        change="align the columns: logits at position i score token i + 1",
        reading=Shift(by=by),
        number=Number(family="values shifted", name="by", value=by),
    )


def _cut(by: str, value: float) -> Hypothesis:
    return Hypothesis(
        name=f"{by}={value:g}",
        says=f"recorded log-probabilities renormalised over what {by}={value:g} keeps",
        change=f"record raw log-probabilities, or apply {by} on both sides",
        reading=Cut(by=by, value=value),
        number=Number(family=f"truncation by {by}", name=by, value=value),
    )


def _in_two_steps(graph: Graph) -> Iterator[Hypothesis]:
    offset = shipped_faults()["rope-offset"]
    rotary = [node.name for node in graph.nodes if node.op.name in offset.spec.sits.op]
    for by in _SHIFTS if rotary else ():
        yield Hypothesis(
            name=f"positions of the response {by:+d}",
            says=f"counted the positions of the response {by:+d} off after those of the prompt",
            change="compare the position ids of decoding with those of the prompt",
            plants=tuple(Plant(node=node, fault=offset, values=(("offset", by),), phase="chunk") for node in rotary),
            reading=Split(),
            number=Number(family="positions of the response", name="by", value=by),
        )


def _older(graph: Graph, previous: Path, prompts: Prompts) -> Iterator[Hypothesis]:
    """Hypotheses that the prompt, or some of the first tokens, was computed with the weights, or the adapter, before
    the update.
    """
    part = next(iter(stale_parts_of(previous)))
    plants = of_older(part, weighted(graph, part), previous, "prefill")
    change = "clear the prefix cache and all keys and values when weights change"
    if prompts.shortest > 1:
        yield Hypothesis(
            name="prompt computed with older weights",
            says=f"read keys and values of the prompt that {previous.name} computed",
            change=change,
            plants=plants,
            reading=Split(),
        )
    for count in (count for count in _PREFIXES if count < prompts.length):
        yield Hypothesis(
            name=f"first {count} tokens computed with older weights",
            says=f"read keys and values of the first {count} tokens that {previous.name} computed",
            change=change,
            plants=plants,
            number=Number(family="first tokens computed with older weights", name="tokens", value=count),
            plainness=1,
            reading=Split(tokens=count),
        )
