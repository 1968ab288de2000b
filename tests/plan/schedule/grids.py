"""Grids, settings and schedules as tests write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from moeparity.errors import Where
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.settings import ScheduleSettings, settings
from moeparity.plan.schedule.steps import Schedule, Step
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.spec import reader

HERE = Where(Path("here"))


def grid(*sequences: tuple[int, int], length: int | None = None, at_left: bool = False) -> TokenGrid:
    """Sequences of (prompt, tokens), padded at the right or the left; all ids differ."""
    width = length or max(tokens for _, tokens in sequences)
    spans = tuple((width - tokens, width) if at_left else (0, tokens) for _, tokens in sequences)
    ids = tuple(tuple(range(row * width, row * width + width)) for row in range(len(sequences)))
    return TokenGrid(spans=spans, prompts=tuple(prompt for prompt, _ in sequences), length=width, ids=ids)


def written(fields: dict[str, Any], sequences: int | None = None) -> ScheduleSettings:
    """The settings of a recipe's `schedule:`."""
    return settings(reader.read_scheduling(fields, HERE), None, sequences, HERE)


def make(fields: dict[str, Any], tokens: TokenGrid) -> Schedule:
    """The schedule of a recipe's `schedule:`."""
    return schedule(written(fields, tokens.sequences), tokens, HERE)


def listing(of: Schedule) -> list[str]:
    """Steps one a line: `decode 0:3-4 1:5-6 +2`, fillers aside; `<` stands before a copy and its source."""
    return [line(step) for step in of.steps if not step.filler]


def line(step: Step) -> str:
    """One step in words."""
    copies = [f"{c.sequence}:{c.first}-{c.last}<{c.source}" for c in step.copies]
    spans = [f"{s.sequence}:{s.first}-{s.last}" for s in step.spans]
    return " ".join([step.phase, *copies, *spans, *([f"+{step.padding}"] if step.padding else [])])


@st.composite
def grids(draw: st.DrawFn) -> TokenGrid:
    """Grids of up to six sequences, padded at both ends, of which some share prefixes."""
    length = draw(st.integers(1, 14))
    spans, prompts = [], []
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, length - 1))
        last = draw(st.integers(first + 1, length))
        spans.append((first, last))
        prompts.append(draw(st.integers(0, last - first)))
    # Two ids only, so that prefixes are shared.
    ids = tuple(tuple(draw(st.integers(0, 1)) for _ in range(length)) for _ in spans)
    return TokenGrid(spans=tuple(spans), prompts=tuple(prompts), length=length, ids=ids)


@st.composite
def schedulings(draw: st.DrawFn, sequences: int) -> dict[str, Any]:
    """What a recipe may say under `schedule:`, without files."""
    small = st.integers(1, 12)
    rule = draw(st.sampled_from(["transformers", "vllm-v1", "sglang"]))
    is_server = rule != "transformers"
    fields: dict[str, Any] = {"rule": rule}
    batches: list[Any] = ["single", "all", {"fixed": draw(small)}, *(["continuous"] if is_server else [])]
    is_decoded = draw(st.booleans())
    if is_decoded:
        fields["decode"] = {
            "from": draw(st.sampled_from(["prompt", 1, 3, 20])),
            "batch": draw(st.sampled_from(batches)),
        }
        if fields["decode"]["batch"] == "continuous" and draw(st.booleans()):
            arrivals = st.lists(st.integers(0, 9), min_size=sequences, max_size=sequences)
            fields["decode"]["arrivals"] = draw(arrivals)
        fields |= {"verify": draw(st.integers(1, 3))} if draw(st.booleans()) else {}
    block = draw(st.integers(1, 3))
    if is_server:
        fields |= {"buckets": draw(st.lists(small, max_size=3))} if draw(st.booleans()) else {}
        fields |= {"sequences": draw(st.integers(1, 4))} if draw(st.booleans()) else {}
        fields |= {"prefix": {"block": block}} if draw(st.booleans()) else {}
    elif not is_decoded and draw(st.booleans()):
        modes = {"mask": st.sampled_from(["block", "none"]), "positions": st.sampled_from(["reset", "running"])}
        return {"pack": {"length": draw(st.integers(14, 40)), **{key: draw(mode) for key, mode in modes.items()}}}
    # SGLang takes whole pages only.
    size = draw(small) * (block if rule == "sglang" and "prefix" in fields else 1)
    fields["prefill"] = draw(st.sampled_from(["whole", {"chunk": size}]))
    if draw(st.booleans()):
        # Places behind a sequence's end are those of an update that it does not see.
        tokens = st.one_of(st.integers(0, 14), st.lists(st.integers(0, 14), min_size=sequences, max_size=sequences))
        fields["updates"] = {"at": [draw(tokens)], "cache": draw(st.sampled_from(["kept", "recomputed"]))}
        if "prefix" in fields:
            fields["updates"]["prefix"] = draw(st.sampled_from(["kept", "keyed"]))
    return fields
