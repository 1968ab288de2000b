"""No broken file gives a number: a good log with one defect is refused, or gives exactly what it gave without."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moeparity import logs
from moeparity.errors import LogError
from tests.logs.broken import FIXTURES, NEMO, PRIME

Result = dict[str, tuple[list[int], list[float], list[float]]]
Mutation = Callable[[list[dict[str, Any]], random.Random], None]

LOGS: dict[str, tuple[str, str | None]] = {
    "nemo-rl": (NEMO, None),
    "prime-rl": (PRIME, None),
    "moeparity": ("moeparity/log.jsonl", None),
    "sglang": ("sglang/generate.jsonl", "sglang/scored.jsonl"),
    "vllm": ("vllm/outputs.jsonl", "vllm/scored.jsonl"),
    "openai": ("openai/completions.jsonl", "openai/scored.jsonl"),
    "chat": ("openai/chat.jsonl", "openai/scored.jsonl"),
}
DEFECTS: tuple[Any, ...] = (
    None,
    True,
    False,
    "-1",
    float("nan"),
    float("inf"),
    0.5,
    [],
    {},
    -9999.0,
    10**30,
)
"""None of them is the log-probability of a token, nor a token; -0.5 in place of -0.4 nobody can see.

-inf is not among them: a trainer may say it of a token.
"""


def present(column: Tensor | None) -> Tensor:
    assert column is not None
    return column


def numbers(sampled: Path, scored: Path | None) -> Result:
    read = logs.open([sampled], trainer=[scored] if scored else [])
    return {
        sequence.id: (
            sequence.token_ids[sequence.mask].tolist(),
            present(sequence.rollout)[sequence.mask].tolist(),
            present(sequence.trainer)[sequence.mask].tolist(),
        )
        for sequence in read
    }


def containers(value: Any) -> Iterator[Any]:
    """Every list and mapping inside a record, itself included."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def drop_a_field(lines: list[dict[str, Any]], rng: random.Random) -> None:
    place = rng.choice([each for each in containers(rng.choice(lines)) if isinstance(each, dict)])
    del place[rng.choice(list(place))]


def change_a_length(lines: list[dict[str, Any]], rng: random.Random) -> None:
    place = rng.choice([each for each in containers(rng.choice(lines)) if isinstance(each, list)])
    if rng.random() < 0.5:
        place.append(place[-1])
    else:
        del place[rng.randrange(len(place))]


def spoil_an_entry(lines: list[dict[str, Any]], rng: random.Random) -> None:
    place = rng.choice([each for each in containers(rng.choice(lines)) if isinstance(each, list)])
    # One of the loss's or the tokens' own numbers; a mask of 0 in place of 1 is a mask.
    at = rng.randrange(len(place))
    if type(place[at]) is float or (type(place[at]) is int and place[at] > 1):
        place[at] = rng.choice(DEFECTS)


def swap_a_field(lines: list[dict[str, Any]], rng: random.Random) -> None:
    """What should be one sequence's stands in another."""
    first, second = rng.sample(lines, 2)
    # NeMo-RL pads all columns of a step to one length, by which nobody can tell whose they are.
    keys = first.keys() & second.keys() - (
        {"token_ids", "generation_logprobs", "prev_logprobs"} if "idx" in first else set()
    )
    key = rng.choice(sorted(keys))
    first[key], second[key] = second[key], first[key]


def repeat_a_line(lines: list[dict[str, Any]], rng: random.Random) -> None:
    lines.append(rng.choice(lines))


MUTATIONS: tuple[Mutation, ...] = (drop_a_field, change_a_length, spoil_an_entry, swap_a_field, repeat_a_line)


def test_a_trainer_may_give_a_token_no_probability(tmp_path: Path) -> None:
    sampled, scored = FIXTURES / "sglang/generate.jsonl", FIXTURES / "sglang/scored.jsonl"
    lines = [json.loads(line) for line in scored.read_text().splitlines()]
    entries = lines[0]["meta_info"]["input_token_logprobs"]
    entries[-1][0] = float("-inf")
    changed = tmp_path / "scored.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (first, *_), (before, *_) = numbers(sampled, changed).values(), numbers(sampled, scored).values()
    assert first[2] == [*before[2][:-1], float("-inf")]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("name", LOGS)
@settings(max_examples=10)
@given(rng=st.randoms(use_true_random=False), side=st.booleans())
def test_a_defect_is_refused_or_changes_nothing(name: str, mutate: Mutation, rng: random.Random, side: bool) -> None:
    paths = [FIXTURES / path for path in LOGS[name] if path is not None]
    expected = numbers(paths[0], paths[1] if len(paths) > 1 else None)
    broken = int(side) % len(paths)
    lines = [json.loads(line) for line in paths[broken].read_text().splitlines()]
    mutate(lines, rng)
    with tempfile.TemporaryDirectory() as folder:
        paths[broken] = Path(folder, paths[broken].name)
        paths[broken].write_text("".join(json.dumps(line) + "\n" for line in lines))
        try:
            sequences = numbers(paths[0], paths[1] if len(paths) > 1 else None)
        except LogError:
            return
    # Ids that change places in a file that holds both sides name the same sequences otherwise.
    assert sorted(sequences.values()) == sorted(expected.values())


@pytest.mark.parametrize("name", LOGS)
@settings(max_examples=10)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_gives_whole_sequences_or_none(name: str, share: float) -> None:
    sampled, scored = LOGS[name]
    content = (FIXTURES / sampled).read_bytes()
    scored_file = None if scored is None else FIXTURES / scored
    expected = numbers(FIXTURES / sampled, scored_file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(sampled).name)
        path.write_bytes(content[: int(share * len(content))])
        try:
            sequences = numbers(path, scored_file)
        except LogError:
            return
    # Between two lines a cut cannot be seen in one file; a line's newline may be missing.
    assert sequences == dict(list(expected.items())[: len(sequences)])
    assert content[: int(share * len(content))].rstrip(b"\n").count(b"\n") + 1 == len(sequences)


@pytest.mark.parametrize("name", ["slime/train_7.pt", "moeparity/log.parquet", "moeparity/log.safetensors"])
@settings(max_examples=10)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_container_is_refused(name: str, share: float) -> None:
    content = (FIXTURES / name).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(name).name)
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(LogError):
            numbers(path, None)
