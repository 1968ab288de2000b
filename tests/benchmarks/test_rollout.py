"""The benchmark of rollouts, on a tiny one: the same bits on both sides, weights read once, bounds that can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import rollout
from benchmarks.rollout import BOUNDS, STATED, Load, Row

TINY = Load(sequences=2, prompt=3, new=4)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(rollout.measured(TINY, repetitions=1))


def test_a_replay_has_the_bits_of_the_generation_and_of_its_own_prefill(rows: list[Row]) -> None:
    assert [(row.profile, row.against) for row in rows] == [
        ("hf-eager", "generate"),
        ("hf-default", "generate"),
        (STATED, "prefill"),
    ]
    assert all(row.same for row in rows)
    assert all(min(*row.replay, *row.other_trainer, *row.ratio) > 0 for row in rows)


def test_weights_are_read_once_for_all_steps() -> None:
    read, stored = rollout.weights_read(TINY)
    assert read == stored > 3_000_000


def test_every_token_goes_through_one_step_but_the_last() -> None:
    first, *decode = TINY.schedule.steps
    assert (first.tokens, first.scored) == (6, (0, 1))
    assert [step.tokens for step in decode] == [2] * 3


def test_other_bits_are_no_row_of_the_table(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    unequal_row = replace(rows[0], same=False)
    monkeypatch.setattr(rollout, "measured", lambda *_: iter([unequal_row]))
    monkeypatch.setattr("sys.argv", ["rollout", "--sequences", "2", "--prompt", "3", "--new", "4"])
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit, match="bits differ"):
            rollout.main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("factor", "code"), [(0.5, 0), (2.0, 1)])
def test_a_ratio_above_its_bound_fails(
    rows: list[Row],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    factor: float,
    code: int,
) -> None:
    row = replace(rows[0], ratio=(factor * BOUNDS["generate"], 0.1))
    monkeypatch.setattr(rollout, "measured", lambda *_: iter([row]))
    monkeypatch.setattr("sys.argv", ["rollout", "--sequences", "2", "--prompt", "3", "--new", "4"])
    threads = torch.get_num_threads()
    try:
        assert rollout.main() == code
    finally:
        torch.set_num_threads(threads)
    assert f"{row.ratio[0]:.2f}" in capsys.readouterr().out
