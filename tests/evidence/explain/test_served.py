"""What a server's flat batches show: all rows of a step together, and by request with the steps before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.evidence.alignment.tokens import of_requests
from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.observed import in_steps
from moeparity.evidence.explain.served import CACHED, MASK, POSITIONS, by_request
from moeparity.evidence.maps.continued import BEHIND_EACH_OTHER, contexts
from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.values import ShownValues
from moeparity.evidence.trace.records import Batch
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Sizes
from tests.hf.compare import opened

EMBED, CACHE, HEAD = "embed", "layers[0].attention.cache.k", "lm_head"
"""Values with tokens on axis 1 and on axis 2, and one of each request's last token alone."""
BATCHES = (
    Batch(step=1, requests=("b", "a"), starts=(0, 0), tokens=(1, 2)),
    Batch(step=2, requests=("a", "b"), starts=(2, 1), tokens=(2, 1), padding=2),
    Batch(step=3, requests=("b", "a"), starts=(2, 4), tokens=(1, 1)),
)
"""A prompt of four tokens in chunks of two, another of one, which decodes beside it; their rows are exchanged."""


def ways_of(batches: tuple[Batch, ...]) -> tuple[list[Forward], list[ShownValues]]:
    """Forwards whose values are the numbers of their rows, counted through all steps."""
    ways, shown, begin = list[Forward](), list[ShownValues](), 0
    for batch in batches:
        rows = sum(batch.tokens) + batch.padding
        numbers = torch.arange(begin, begin + rows)
        ways.append(Forward(numbers[None], of_requests(batch, numbers[None]), {}))
        tensors = {
            "tokens": numbers[None],
            EMBED: numbers[None, :, None].float(),
            CACHE: numbers[None, None, :, None].float(),
            HEAD: torch.zeros(1, len(batch.requests), 7),
        }
        shown.append(ShownValues(tensors=tensors, other_shapes={EMBED: "a note"}))
        begin += rows
    return ways, shown


@pytest.fixture(scope="module")
def graph(qwen3_moe: Path) -> Graph:
    return opened(qwen3_moe).graph


def steps_of(batches: tuple[Batch, ...], graph: Graph) -> list[tuple[Observation, Sizes]]:
    ways, shown = ways_of(batches)
    return by_request(ways, in_steps(ways, contexts(ways), shown), graph)


def together(batches: tuple[Batch, ...]) -> list[tuple[Observation, Sizes]]:
    ways, shown = ways_of(batches)
    return in_steps(ways, contexts(ways), shown)


def test_a_step_has_all_its_rows() -> None:
    """Each at the position that its own request has; rows that pad are not real."""
    steps = together(BATCHES)
    assert [step.values[POSITIONS].tolist() for step, _ in steps] == [[[0, 0, 1]], [[2, 3, 1, 0, 0]], [[2, 4]]]
    reals = [step.real.tolist() for step, _ in steps if step.real is not None]
    assert reals == [[[True] * 3], [[True] * 3 + [False] * 2], [[True] * 2]]
    assert [step.tokens.ends for step, _ in steps if step.tokens is not None] == [(0, 2), (1, 2), (0, 1)]
    names = [[step.tokens.where(row) for row in range(3)] for step, _ in steps[:2] if step.tokens is not None]
    assert names == [[(0, 0, "b"), (0, 0, "a"), (0, 1, "a")], [(0, 2, "a"), (0, 3, "a"), (0, 1, "b")]]
    assert [step.number for step, _ in steps] == [0, 1, 2]
    assert all(step.unknown == BEHIND_EACH_OTHER and MASK not in step.values for step, _ in steps)
    assert all(step.other_shapes == {EMBED: "a note"} for step, _ in steps)


def test_sizes_are_those_of_the_longest_request() -> None:
    sizes = [sizes for _, sizes in together(BATCHES)]
    assert sizes == [
        Sizes("prefill", 3, longest=2, keys=2, queries=2),
        Sizes("chunk", 5, longest=4, keys=4, queries=2),
        Sizes("decode", 2, longest=5, keys=5, queries=1),
    ]


def test_each_request_is_a_sequence_that_goes_on(graph: Graph) -> None:
    """In the order of rows; what it reads earlier is of its own run, whatever rows that had."""
    steps = steps_of(BATCHES, graph)
    rows = [step.values[EMBED].flatten().tolist() for step, _ in steps]
    assert rows == [[0], [1, 2], [3, 4], [5], [8], [9]]
    assert [step.values["tokens"].flatten().tolist() for step, _ in steps] == rows
    assert [step.values[CACHE].flatten().tolist() for step, _ in steps] == rows
    assert [tuple(step.values[CACHE].shape) for step, _ in steps][1] == (1, 1, 2, 1)
    earlier = [[before.values[EMBED].flatten().tolist() for before in step.earlier] for step, _ in steps]
    assert earlier == [[], [], [[1, 2]], [[0]], [[0], [5]], [[1, 2], [3, 4]]]
    assert [step.values[POSITIONS].flatten().tolist() for step, _ in steps] == [[0], [0, 1], [2, 3], [1], [2], [4]]
    assert [step.number for step, _ in steps] == [0, 0, 1, 1, 2, 2]


def test_a_request_has_its_own_mask_and_sizes(graph: Graph) -> None:
    """No padding; the head's rows are its own only where each request of a step has one row."""
    steps = steps_of(BATCHES, graph)
    assert [tuple(step.values[MASK].shape) for step, _ in steps] == [(1, 1), (1, 2), (1, 2), (1, 1), (1, 1), (1, 1)]
    assert all(bool(step.values[MASK].all()) for step, _ in steps)
    assert all(step.real is None and not step.unknown for step, _ in steps)
    assert [HEAD in step.values for step, _ in steps] == [False] * 4 + [True] * 2
    assert [(of.keys, of.queries, of.phase) for _, of in steps] == [
        (1, 1, "prefill"), (2, 2, "prefill"), (4, 2, "chunk"), (2, 1, "chunk"), (3, 1, "decode"), (5, 1, "decode"),
    ]  # fmt: skip
    assert all(tensor.is_contiguous() for step, _ in steps for tensor in step.values.values())


def test_what_reads_a_prefix_cache_is_not_known(graph: Graph) -> None:
    """Nor are its later steps; a request beside it is."""
    batches = (
        Batch(step=1, requests=("a", "b"), starts=(16, 0), tokens=(2, 1)),
        Batch(step=2, requests=("a", "b"), starts=(18, 1), tokens=(1, 1)),
    )
    steps = steps_of(batches, graph)
    assert [step.unknown for step, _ in steps] == [CACHED, "", CACHED, ""]
    assert [MASK in step.values for step, _ in steps] == [False, True, False, True]
    assert [len(step.earlier) for step, _ in steps] == [0, 0, 0, 1]
    assert [of.keys for _, of in steps] == [18, 1, 19, 2]


def test_a_request_that_was_preempted_reads_nothing_of_before(graph: Graph) -> None:
    batches = (
        Batch(step=1, requests=("a",), starts=(0,), tokens=(2,)),
        Batch(step=2, requests=("a",), starts=(0,), tokens=(3,)),
        Batch(step=3, requests=("a",), starts=(3,), tokens=(1,)),
    )
    steps = steps_of(batches, graph)
    assert [[before.number for before in step.earlier] for step, _ in steps] == [[], [], [1]]
    assert [of.phase for _, of in steps] == ["prefill", "prefill", "decode"]
