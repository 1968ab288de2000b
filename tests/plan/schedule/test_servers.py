"""vLLM's and SGLang's rules: traces worked by hand from their sources, and a second simulation of each."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moeparity.plan.schedule.steps import Span
from moeparity.plan.schedule.token_grid import TokenGrid
from tests.plan.schedule.grids import grid, line, listing, make

DECODE: dict[str, Any] = {"from": "prompt"}


def test_vllm_mixes_decoding_with_chunks_of_prompts() -> None:
    of = make({"rule": "vllm-v1", "decode": DECODE, "prefill": {"chunk": 4}}, grid((2, 5), (7, 9), (1, 3)))
    assert listing(of) == [
        "chunk 0:0-2 1:0-2",
        # Running requests first, in the order in which they came: one decodes, the other has the rest of the budget.
        "chunk 0:2-3 1:2-5",
        "chunk 0:3-4 1:5-7 2:0-1",
        "decode 1:7-8 2:1-2",
    ]
    # The head takes each request's last row, also of a prompt that is not there yet.
    assert [step.scored for step in of.steps[:4]] == [(0, 1), (0, 1), (0, 1, 2), None]
    assert {step.shape for step in of.steps} == {"flat"}


def test_vllm_lets_no_more_run_than_max_num_seqs() -> None:
    fields = {"rule": "vllm-v1", "decode": DECODE, "sequences": 2}
    assert listing(make(fields, grid((1, 3), (1, 4), (2, 4)))) == [
        "prefill 0:0-1 1:0-1",
        "decode 0:1-2 1:1-2",
        "chunk 1:2-3 2:0-2",
        "decode 2:2-3",
    ]


def test_vllm_leaves_decoding_waiting_where_the_budget_is_spent() -> None:
    fields = {"rule": "vllm-v1", "decode": DECODE, "prefill": {"chunk": 2}}
    assert listing(make(fields, grid((1, 4), (1, 4), (1, 3)))) == [
        "prefill 0:0-1 1:0-1",
        "decode 0:1-2 1:1-2",
        "decode 0:2-3 1:2-3",
        "prefill 2:0-1",
        "decode 2:1-2",
    ]


def test_vllm_verifies_beside_prompts() -> None:
    of = make({"rule": "vllm-v1", "decode": {**DECODE, "arrivals": [0, 1]}, "verify": 2}, grid((1, 9), (3, 5)))
    assert listing(of) == ["prefill 0:0-1", "chunk 0:1-4 1:0-3", "verify 0:4-7 1:3-4", "decode 0:7-8"]
    # All drafted rows reach the head, of the prompt the last.
    assert (of.steps[1].scored, of.steps[1].verified) == ((0, 1), (0,))
    assert of.steps[1].scored_spans == (Span(0, 1, 4), Span(1, 2, 3))
    assert of.steps[2].scored is None


def test_sglang_prefills_first_and_never_mixes() -> None:
    of = make({"rule": "sglang", "decode": {**DECODE, "arrivals": [0, 1, 3]}}, grid((2, 6), (3, 5), (1, 2)))
    assert listing(of) == [
        "prefill 0:0-2",
        "prefill 1:0-3",
        "decode 0:2-3 1:3-4",
        "prefill 2:0-1",
        "decode 0:3-4",
        "decode 0:4-5",
    ]


def test_sglang_goes_on_with_the_prompt_it_cut() -> None:
    of = make({"rule": "sglang", "decode": DECODE, "prefill": {"chunk": 4}}, grid((3, 5), (6, 8), (2, 3)))
    assert listing(of) == [
        "chunk 0:0-3 1:0-1",
        "chunk 1:1-5",
        "chunk 1:5-6 2:0-2",
        # Nobody waits: now they decode, in the order in which their prompts were done.
        "decode 0:3-4 1:6-7",
    ]


def test_sglang_cuts_and_counts_by_whole_pages() -> None:
    fields = {"rule": "sglang", "decode": DECODE, "prefill": {"chunk": 8}, "prefix": {"block": 4}}
    # The first prompt is charged as 8 tokens, though it has 5.
    assert listing(make(fields, grid((5, 5), (6, 6)))) == ["prefill 0:0-5", "prefill 1:0-6"]
    assert listing(make(fields, grid((3, 3), (6, 6)))) == ["chunk 0:0-3 1:0-4", "chunk 1:4-6"]


def test_sglang_without_chunks_takes_prompts_below_its_limit() -> None:
    fields = {"rule": "sglang", "decode": DECODE, "prefill": "whole"}
    # A first prompt may be longer than the limit of 16,384; others have to stay below what is left of it.
    assert listing(make(fields, grid((20_000, 20_000), (5, 5)))) == ["prefill 0:0-20000", "prefill 1:0-5"]
    assert listing(make(fields, grid((16_000, 16_000), (384, 384)))) == [
        "prefill 0:0-16000",
        "prefill 1:0-384",
    ]
    assert listing(make(fields, grid((16_000, 16_000), (383, 383)))) == ["prefill 0:0-16000 1:0-383"]


def test_sglang_lets_no_more_run_than_max_running_requests() -> None:
    fields = {"rule": "sglang", "decode": DECODE, "sequences": 2}
    assert listing(make(fields, grid((1, 3), (1, 4), (2, 4)))) == [
        "prefill 0:0-1 1:0-1",
        "decode 0:1-2 1:1-2",
        "prefill 2:0-2",
        "decode 1:2-3 2:2-3",
    ]


@st.composite
def loads(draw: st.DrawFn) -> tuple[TokenGrid, list[int], int, int, int]:
    """A grid, arrivals, a token budget, the most sequences, drafted tokens."""
    sizes = st.integers(1, 9)
    sequences = [(prompt := draw(sizes), prompt + draw(st.integers(0, 6))) for _ in range(draw(st.integers(1, 5)))]
    arrivals = [draw(st.integers(0, 8)) for _ in sequences]
    return grid(*sequences), arrivals, draw(st.integers(1, 10)), draw(st.integers(1, 4)), draw(st.integers(0, 2))


def fields_of(rule: str, load: tuple[TokenGrid, list[int], int, int, int]) -> dict[str, Any]:
    _, arrivals, budget, most, verify = load
    drafted = {"verify": verify} if verify else {}
    decode = {**DECODE, "arrivals": arrivals}
    return {"rule": rule, "decode": decode, "prefill": {"chunk": budget}, "sequences": most, **drafted}


def spans(lines: list[str]) -> list[str]:
    return [line.partition(" ")[2] for line in lines]


@given(loads())
def test_vllm_again(load: tuple[TokenGrid, list[int], int, int, int]) -> None:
    assert spans(listing(make(fields_of("vllm-v1", load), load[0]))) == vllm(*load)


@given(loads())
def test_sglang_again(load: tuple[TokenGrid, list[int], int, int, int]) -> None:
    assert spans(listing(make(fields_of("sglang", load), load[0]))) == sglang(*load)


def ends(tokens: TokenGrid) -> list[int]:
    """Behind the last token that a server computes."""
    return [max(prompt, last - 1) for prompt, (_, last) in zip(tokens.prompts, tokens.spans, strict=True)]


def vllm(tokens: TokenGrid, arrivals: list[int], budget: int, most: int, verify: int) -> list[str]:
    """vLLM's loop as numbers: num_computed_tokens catches up with num_tokens_with_spec."""
    computed, needed = [0] * tokens.sequences, list(tokens.prompts)
    queue = sorted(range(tokens.sequences), key=lambda s: arrivals[s])
    running: list[int] = []
    steps, clock = [], 0
    while any(computed[s] < end for s, end in enumerate(ends(tokens))):
        budget_left, scheduled = budget, {}
        for s in running:
            scheduled[s] = min(needed[s] - computed[s], budget_left)
            budget_left -= scheduled[s]
        while queue and arrivals[queue[0]] <= clock and len(running) < most and budget_left:
            s = queue.pop(0)
            running.append(s)
            scheduled[s] = min(needed[s], budget_left)
            budget_left -= scheduled[s]
        words = [f"{s}:{computed[s]}-{computed[s] + n}" for s, n in scheduled.items() if n]
        steps += [" ".join(words)] if words else []
        for s, n in scheduled.items():
            computed[s] += n
            if n and computed[s] >= tokens.prompts[s]:
                # One is sampled; drafts that the budget cut off are drafted anew.
                needed[s] = min(computed[s] + 1 + verify, ends(tokens)[s])
        running = [s for s in running if computed[s] < ends(tokens)[s]]
        clock += 1
    return steps


def sglang(tokens: TokenGrid, arrivals: list[int], budget: int, most: int, verify: int) -> list[str]:
    """SGLang's loop as lists: a waiting queue, one chunked request, a running batch."""
    queue = sorted(range(tokens.sequences), key=lambda s: arrivals[s])
    computed = [0] * tokens.sequences
    running: list[int] = []
    chunked: int | None = None
    steps, clock = [], 0
    while queue or running or chunked is not None:
        budget_left, batch = budget, []
        if chunked is not None:
            batch.append((chunked, min(tokens.prompts[chunked] - computed[chunked], budget_left)))
            budget_left -= batch[0][1]
        while queue and arrivals[queue[0]] <= clock and budget_left > 0 and len(batch) + len(running) < most:
            s = queue.pop(0)
            batch.append((s, min(tokens.prompts[s], budget_left)))
            budget_left -= batch[-1][1]
        is_prefill = bool(batch)
        if not is_prefill:
            batch = [(s, min(1 + verify, ends(tokens)[s] - computed[s])) for s in running]
        steps += [" ".join(f"{s}:{computed[s]}-{computed[s] + n}" for s, n in batch)] if batch else []
        for s, n in batch:
            computed[s] += n
        if is_prefill:
            cut = [s for s, _ in batch if computed[s] < tokens.prompts[s]]
            chunked = cut[0] if cut else None
            running += [s for s, _ in batch if s not in cut]
        running = [s for s in running if computed[s] < ends(tokens)[s]]
        clock += 1
    return steps


def test_lines_name_every_token() -> None:
    tokens = grid((2, 4))
    assert [line(step) for step in make({"rule": "vllm-v1", "decode": DECODE}, tokens).steps] == [
        "prefill 0:0-2",
        "decode 0:2-3",
        "forward 0:3-4",
    ]
