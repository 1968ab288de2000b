"""Which hypotheses a sample of the sequences rules out, on numbers whose truth is known and in one command."""

from __future__ import annotations

from pathlib import Path

import torch

from moeparity.doctor.judge import Difference
from moeparity.doctor.screening import SEQUENCES, beside, possible, sampled
from tests.doctor.programs import command, drifted, log, scored, tokens

ROWS, LENGTH = 40, 60


def drawn(seed: int, size: float = 1.0, rows: int = ROWS) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return size * torch.randn(rows, LENGTH, generator=draw, dtype=torch.float64)


def difference(d: torch.Tensor, rows: torch.Tensor | None = None) -> Difference:
    rows = torch.arange(len(d)) if rows is None else rows
    return Difference(d=d.flatten(), sequence=rows.repeat_interleave(LENGTH))


def test_the_sample_has_the_sequences_that_are_off_and_some_others() -> None:
    d = drawn(1, 0.1)
    d[[3, 17]] += 1
    rows = sampled(difference(d))
    assert rows is not None
    assert (len(rows), {3, 17} <= {*rows.tolist()}) == (SEQUENCES, True)
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_of_few_sequences_or_tokens_no_sample_is_drawn() -> None:
    assert sampled(difference(drawn(1)[:20])) is None
    assert sampled(difference(drawn(1)[:24])) is not None
    short = Difference(d=drawn(1)[:, :8].flatten(), sequence=torch.arange(ROWS).repeat_interleave(8))
    assert sampled(short) is None


def test_what_is_surely_worse_is_ruled_out_and_what_explains_alike_is_not() -> None:
    cause = drawn(1, rows=8)
    of = difference(cause + drawn(2, 0.3, 8))
    alike, others = cause + drawn(3, 0.02, 8), [-cause * size for size in (0.5, 1, 2)]
    remaining = possible(of, [x.flatten() for x in (torch.zeros_like(cause), *others, cause, alike)])
    assert remaining == {4, 5}


def test_a_part_of_what_is_wrong_leads_though_it_explains_nothing_as_it_is() -> None:
    """A layer of which one expert is stale makes ten times what was recorded."""
    part, rest = drawn(1, rows=8), drawn(2, 3.0, 8)
    of = difference(part)
    remaining = possible(of, [x.flatten() for x in (torch.zeros_like(part), part + rest, -part, *(-part * 2,) * 9)])
    assert remaining == {0, 1}


def test_what_is_left_in_other_sequences_runs_all_that_were_ruled_out() -> None:
    rows = torch.arange(0, ROWS, 5)
    sample = difference(drawn(1)[rows], rows)
    simulated = [drawn(seed, rows=8).flatten() for seed in range(20)]
    remainder = drawn(3, 0.1)
    remainder[11] += 2
    assert beside(difference(remainder), sample, simulated) == list(range(20))
    remainder = drawn(3, 0.1)
    remainder[rows] += simulated[7].view(8, LENGTH)
    assert beside(difference(remainder), sample, simulated)[0] == 7
    assert len(beside(difference(remainder), sample, simulated)) < 20


def test_a_stale_expert_is_named_though_most_hypotheses_ran_on_a_sample(
    small: Path, small_before: Path, tmp_path: Path
) -> None:
    ids = tokens(27, 56)
    mixed = drifted(small, tmp_path / "mixed", keep=lambda name: ".layers.1.mlp.experts.3." not in name)
    right = scored(small, ids, 4)
    path = log(tmp_path / "log.jsonl", ids, scored(mixed, ids, 4), right)
    of = command(
        path, "--checkpoint", small, "--previous", small_before, "--sampler", "hf-eager", out=tmp_path / "out.json"
    )
    assert (of["answer"], of["blame"]["named"]) == ("named", ["stale expert 3 of layers[1].moe.experts"])
    assert of["sampled"]["sequences"] == SEQUENCES
    assert of["tried"] / 4 < of["sampled"]["ruled_out"] < of["tried"]
    assert f"{of['sampled']['ruled_out']} of them were simulated on a sample of 8 sequences" in of["printed"]
