"""Sequences scored twice by transformers, the second time in another company, and what is said of the second run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from moeparity.evidence.diff.run import diff
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.progress import Stop
from tests.evidence.recorded import recorded

MODELS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen2_moe", "olmoe", "glm4_moe")
VOCAB = 300
"""Below which tokens are drawn."""
THREADS = 2
Batch = tuple[Tensor, Tensor]
"""Ids [B, T] and the mask, of what is cached before too, both int64; positions are counted in each sequence. In a pack
the number of each token's sequence stands in place of the mask, [1, T], from 1 on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a run: by `diff`, its status and how its starts lie to other orders of the same sums; by
    `explain` from the program's own profile on, the nodes that it does not find as they should be.

    inside: whether other orders explain every start of a run that fails. outside: whether none explains some start.
    """

    number: int
    model: str
    change: str
    status: str
    inside: bool
    outside: bool
    accused: tuple[str, ...]
    nodes: int
    seconds: float

    def as_json(self) -> str:
        """To be read again by `of_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Said:
        """What `as_json` wrote."""
        fields = json.loads(text)
        return Said(**{**fields, "accused": tuple(fields["accused"])})


def _padded(rows: Sequence[Sequence[int]], longer: int = 0, *, at_left: bool = False) -> Batch:
    width = max(map(len, rows)) + longer
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    for number, row in enumerate(rows):
        columns = slice(width - len(row), width) if at_left else slice(len(row))
        ids[number, columns], mask[number, columns] = torch.tensor(row), 1
    return ids, mask


def _drawn(draw: Random, count: int) -> list[list[int]]:
    return [[draw.randrange(1, VOCAB) for _ in range(draw.randrange(3, 14))] for _ in range(count)]


def _micro_batches(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """In two parts, one after the other."""
    cut = draw.randrange(1, len(rows))
    yield from (_padded(rows[:cut]), _padded(rows[cut:]))


def _alone(rows: Sequence[Sequence[int]], _: Random) -> Iterator[Batch]:
    """Each by itself."""
    yield from (_padded([row]) for row in rows)


def _order(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """In another order."""
    yield _padded(draw.sample(rows, len(rows)))


def _padding(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """With more padding, at the left or at the right."""
    yield _padded(rows, draw.randrange(1, 9), at_left=draw.random() < 1 / 2)


def _company(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """Beside other sequences."""
    yield _padded([*rows, *_drawn(draw, draw.randrange(1, 4))])


def _lengths(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """The first tokens of each alone, of one no more than one."""
    shorter = [row[: draw.randrange(1, len(row) + 1)] for row in rows]
    yield _padded([shorter[0][:1], *shorter[1:]])


def _one_token(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """The first token of each alone, in one batch or in one forward each."""
    batches = [[row[:1] for row in rows]] if draw.random() < 1 / 2 else [[row[:1]] for row in rows]
    yield from map(_padded, batches)


def _steps(rows: Sequence[Sequence[int]], draw: Random) -> Iterator[Batch]:
    """A part as a prompt, the rest token by token, with a cache."""
    ids, mask = _padded(rows, at_left=True)
    for begin, end in pairwise([0, *range(draw.randrange(1, ids.shape[1]), ids.shape[1] + 1)]):
        yield ids[:, begin:end], mask[:, :end]


def _same(rows: Sequence[Sequence[int]], _: Random) -> Iterator[Batch]:
    """In the same batch: again, on other threads, or after another model has run in the process."""
    yield _padded(rows)


def _packed(rows: Sequence[Sequence[int]], _: Random) -> Iterator[Batch]:
    """All in one row."""
    numbers = [number for number, row in enumerate(rows, 1) for _ in row]
    yield torch.tensor([[token for row in rows for token in row]]), torch.tensor([numbers])


AFTER, IN_STEPS, PACKED, ALONE = "after another model", "in steps, with a cache", "in one row", "one by one"
NO_PACKS = frozenset({"gpt_oss"})
"""transformers 5.23.0 takes a pack for one sequence in these models, which is a fault of its own (docs/explain.md)."""
CHANGES: dict[str, Callable[[Sequence[Sequence[int]], Random], Iterator[Batch]]] = {
    "other micro-batches": _micro_batches,
    "another order": _order,
    "other padding": _padding,
    "other sequences beside": _company,
    "other threads": _same,
    "again": _same,
    ALONE: _alone,
    "other lengths": _lengths,
    "one token": _one_token,
    IN_STEPS: _steps,
    PACKED: _packed,
    AFTER: _same,
}
"""What is else in the second run."""


def answers_of_run(
    number: int, seed: int, program: Any, model: str, checkpoint: Path, folder: Path, before: Any = None
) -> Said:
    """Score drawn sequences twice, then ask of the second run beside the first one, and of the second by itself.

    `before` is another program, which runs between them where the change asks for one.
    """
    begin, draw = time.process_time(), Random(f"{seed} {number}")  # noqa: S311
    change = tuple(CHANGES)[number // len(MODELS) % len(CHANGES)]
    change = ALONE if change == PACKED and model in NO_PACKS else change
    rows = _drawn(draw, draw.randrange(3, 7))
    good = _captured(program, [_padded(rows)], folder / "good")
    if change == AFTER:
        _scored(before or program, [_padded(_drawn(draw, 2))])
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS if change == "other threads" else threads)
    try:
        batches = list(CHANGES[change](rows, draw))
        second = _captured(program, batches, folder / "other", change)
        report = diff(good, second)
        # What differs is named, and not searched for.
        answer = explain_trace(ExplainRequest(trace=second, checkpoint=checkpoint), stop=Stop(seconds=0))
    finally:
        torch.set_num_threads(threads)
    return Said(
        number=number,
        model=model,
        change=change,
        status=report.status,
        inside=report.status == "fail" and {start.orders.verdict for start in report.starts} == {"inside"},
        outside=any(start.orders.verdict == "outside" for start in report.starts),
        accused=tuple(node.node for node in answer.nodes if not node.as_started),
        nodes=len(answer.nodes),
        seconds=time.process_time() - begin,
    )


def _captured(program: Any, batches: Sequence[Batch], folder: Path, change: str = "") -> Path:
    with recorded(folder, level="op,module"):
        if change == PACKED:
            _scored_in_packs(program, batches)
        else:
            _scored(program, batches, DynamicCache(config=program.config) if change == IN_STEPS else None)
    return folder


def _scored(program: Any, batches: Sequence[Batch], cache: DynamicCache | None = None) -> None:
    """A forward of each; positions are counted in each sequence, over what the cache holds too."""
    for ids, mask in batches:
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        with torch.no_grad():
            program(
                ids, attention_mask=mask, position_ids=positions, use_cache=cache is not None, past_key_values=cache
            )


def _scored_in_packs(program: Any, batches: Sequence[Batch]) -> None:
    """A forward of each, without a mask: transformers knows the sequences by their positions."""
    for ids, numbers in batches:
        counts = numbers[0].bincount().tolist()
        positions = torch.cat([torch.arange(count) for count in counts])[None]
        with torch.no_grad():
            program(ids, position_ids=positions, use_cache=False)
