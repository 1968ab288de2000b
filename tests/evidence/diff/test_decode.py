"""One prefill against a decode step by step: tokens meet by sequence and position, and the first step is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from moeparity.evidence.diff.show import headline
from tests.evidence.diff.scene import HIDDEN, IDS, VOCABULARY, record

MASK = torch.ones_like(IDS)
MASK[1, :3] = 0
PROMPT, LENGTH = 4, IDS.shape[1]
Fault = Callable[[Tensor, int], Tensor]


def _none(v: Tensor, _: int) -> Tensor:
    return v


def _rounded(x: Tensor) -> Tensor:
    """To multiples of 1/64: all sums are exact in fp64, so that no number of rows changes a bit."""
    return torch.round(x.clamp(-8, 8) * 64) / 64


class _Attention(nn.Module):
    """Behind what it has kept; `fault` changes the values that it is given behind so many, or `hides` what it sees."""

    def __init__(self, fault: Fault, hides: Fault) -> None:
        super().__init__()
        self.hides = hides
        self.qkv, self.o_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.fault = fault
        self.cache: list[Tensor] = []

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        past = self.cache[0].shape[2] if self.cache else 0
        v = self.fault(v, past)
        if self.cache:
            k, v = torch.cat([self.cache[0], k], 2), torch.cat([self.cache[1], v], 2)
        self.cache = [k, v]
        total = past + x.shape[1]
        visible = torch.ones(total, total, dtype=torch.bool).tril()[past:] & attention_mask[:, None, None, :].bool()
        visible = self.hides(visible, past)
        # No softmax: its sum rounds, and so says how many keys are hidden.
        scores = _rounded((16 * (q @ k.transpose(-1, -2))).abs()).masked_fill(~visible, 0)
        weights = _rounded(scores / (1 + scores.sum(-1, keepdim=True)))
        out: Tensor = self.o_proj(_rounded(weights @ v).transpose(1, 2).flatten(-2))
        return out


class _Layer(nn.Module):
    def __init__(self, fault: Fault, hides: Fault) -> None:
        super().__init__()
        self.attention, self.mlp = _Attention(fault, hides), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        x = _rounded(x + self.attention(x, attention_mask))
        return _rounded(x + F.relu(self.mlp(x)))


class _Program(nn.Module):
    def __init__(self, fault: Fault = _none, hides: Fault = _none) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        layer_faults = [(fault, hides) if number == 1 else (_none, _none) for number in range(3)]
        self.layers = nn.ModuleList(_Layer(*faults) for faults in layer_faults)
        random = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randint(-12, 13, parameter.shape, generator=random).double() / 64

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, attention_mask)
        return torch.as_tensor(x)


def _steps(ends: list[int], mask: Tensor) -> list[dict[str, Tensor]]:
    starts = [0, *ends[:-1]]
    return [
        {"input_ids": IDS[:, a:b].contiguous(), "attention_mask": mask[:, :b].contiguous()}
        for a, b in zip(starts, ends, strict=True)
    ]


def _compared(tmp_path: Path, mask: Tensor, fault: Fault = _none, **options: Any) -> DiffReport:
    a = record(tmp_path / "a", _Program(), _steps([LENGTH], mask), **options)
    steps = _steps([PROMPT, *range(PROMPT + 1, LENGTH + 1)], mask)
    return diff(a, record(tmp_path / "b", _Program(fault), steps, **options))


@pytest.mark.parametrize("mask", [torch.ones_like(IDS), MASK])
def test_a_decode_that_computes_the_same_has_equal_bits(tmp_path: Path, mask: Tensor) -> None:
    report = _compared(tmp_path, mask)
    assert report.starts == ()
    assert report.coverage.compared > 50
    assert (report.status, report.coverage.uncovered) == ("pass", 0), report.words


@pytest.mark.parametrize(("mask", "ops"), [(torch.ones_like(IDS), True), (MASK, True), (MASK, False)])
def test_the_first_step_and_token_of_a_fault_are_named(tmp_path: Path, mask: Tensor, *, ops: bool) -> None:
    """At the sixth column the values of one sequence are others: what reads them later begins nothing."""
    token = 5

    def fault(v: Tensor, past: int) -> Tensor:
        return v * torch.tensor([1.0, 1.0, 1.5]).double().reshape(3, 1, 1, 1) if past == token else v

    report = _compared(tmp_path, mask, fault, ops=ops)
    assert report.status == "fail"
    start = report.starts[0]
    assert len(report.starts) == 1 or not ops
    # Without ops it lies between the modules qkv and o_proj.
    start_named = ("layers.1.attention", "op") if ops else ("layers.1.attention.o_proj", "unseen")
    assert (start.path, start.kind) == start_named
    assert start.position is not None
    assert (start.position.sequence, start.position.token) == (2, token)
    assert start.position.behind_cache == (False, True)
    assert start.passes == (0, 2)
    assert f"first token {token} of sequence 2, in pass 0 of A and pass 2 (behind a cache) of B" in headline(start)


def _at_the_right(x: Tensor) -> Tensor:
    """With the padding of `MASK` at the right."""
    return torch.stack([x[0], x[1].roll(-3), x[2]])


def _padded_at_both_sides(tmp_path: Path, hides: Fault = _none) -> DiffReport:
    """A prefill padded at the right against a decode padded at the left: no key stands in the same column."""
    whole = {"input_ids": _at_the_right(IDS), "attention_mask": _at_the_right(MASK)}
    steps = _steps([PROMPT, *range(PROMPT + 1, LENGTH + 1)], MASK)
    a = record(tmp_path / "a", _Program(), [whole])
    return diff(a, record(tmp_path / "b", _Program(hides=hides), steps))


def test_keys_meet_in_any_columns(tmp_path: Path) -> None:
    report = _padded_at_both_sides(tmp_path)
    assert report.starts == ()
    assert (report.status, report.coverage.uncovered) == ("pass", 0), report.words


def test_a_key_that_one_side_hides_is_a_start(tmp_path: Path) -> None:
    """In the step behind six columns the padded sequence, of which three are tokens, does not see its second token."""

    def hides(visible: Tensor, past: int) -> Tensor:
        hidden = visible.clone()
        hidden[1, ..., 4:5] &= past != 6
        return hidden

    report = _padded_at_both_sides(tmp_path, hides)
    (start,) = report.starts
    assert (report.status, start.path) == ("fail", "layers.1.attention")
    assert start.position is not None
    assert (start.position.sequence, start.position.token) == (1, 3)
    assert start.passes == (0, 3)


def test_a_mask_that_hides_a_token_of_the_cache_in_one_step_is_a_start(tmp_path: Path) -> None:
    """The sequence goes on all the same: its row has as many columns as before, and its token is named."""
    steps = _steps([PROMPT, *range(PROMPT + 1, LENGTH + 1)], torch.ones_like(IDS))
    steps[2]["attention_mask"][0, 4] = 0
    a = record(tmp_path / "a", _Program(), _steps([LENGTH], torch.ones_like(IDS)))
    (start,) = diff(a, record(tmp_path / "b", _Program(), steps)).starts
    assert (start.path, start.passes, start.tokens) == ("layers.0.attention", (0, 2), 1)
    assert start.position is not None
    assert (start.position.sequence, start.position.token) == (0, 5)


def test_tokens_that_find_no_counterpart_are_no_equal_ones(tmp_path: Path) -> None:
    """One sequence of three begins otherwise."""
    steps = _steps([LENGTH], torch.ones_like(IDS))
    a = record(tmp_path / "a", _Program(), steps)
    (batch,) = _steps([LENGTH], torch.ones_like(IDS))
    batch["input_ids"] = torch.cat([(IDS[:1] + 1) % HIDDEN, IDS[1:]])
    report = diff(a, record(tmp_path / "b", _Program(), [batch]))
    assert report.status == "inconclusive"
    assert f"{LENGTH} tokens of A and {LENGTH} tokens of B without a counterpart" in report.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "says"), [(1, 0, "A reads 3 tokens that B masks"), (0, 1, "B reads 3 tokens that A masks")]
)
def test_a_mask_that_one_program_leaves_out_is_told(tmp_path: Path, ours: int, theirs: int, says: str) -> None:
    traces = (
        record(tmp_path / name, _Program(), _steps([LENGTH], (MASK, torch.ones_like(IDS))[left_out]))
        for name, left_out in (("a", ours), ("b", theirs))
    )
    report = diff(*traces)
    assert report.status == "inconclusive"
    assert f"the attention mask differs: {says}" in report.reason
    assert "mask" not in diff(tmp_path / "a", tmp_path / "a").reason


def test_a_decode_of_other_tokens_is_compared_as_far_as_both_have_the_same(tmp_path: Path) -> None:
    a = record(tmp_path / "a", _Program(), _steps([LENGTH], torch.ones_like(IDS)), ops=False)
    steps = _steps([PROMPT, *range(PROMPT + 1, LENGTH + 1)], torch.ones_like(IDS))
    steps[2]["input_ids"] = (steps[2]["input_ids"] + 1) % HIDDEN
    report = diff(a, record(tmp_path / "b", _Program(), steps, ops=False))
    assert report.status == "inconclusive"
    assert "nothing was compared" in report.reason
