"""Prompts continued by a side: where the tokens go, how they are drawn, and that it is that side's own numerics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import continued, draw, generate, required_sample
from moeparity.engine.forward import forward
from moeparity.errors import SpecError, TokensError
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.tensorfile import file_contents
from moeparity.inputs.tokens.tokenset import defect
from moeparity.inputs.weights import store
from moeparity.output.writing import write_tensors
from moeparity.plan.spec.recipe_schema import Sample
from moeparity.progress import Progress
from tests.two_layers import two_layers

qwen3_moe = two_layers("qwen3_moe")

V = 11


def sample(**fields: Any) -> Sample:
    return Sample.model_validate({"from": "candidate", "new_tokens": 3, "temperature": 0, **fields})


def prompts(*rows: list[int], side: str = "right", pad: int = 9) -> TokenSet:
    width = max(map(len, rows))
    fill = [[pad] * (width - len(row)) for row in rows]
    ids = [row + f if side == "right" else f + row for row, f in zip(rows, fill, strict=True)]
    real = [([1] * len(r) + [0] * len(f))[:: 1 if side == "right" else -1] for r, f in zip(rows, fill, strict=True)]
    mask = torch.tensor(real, dtype=torch.bool)
    return TokenSet(input_ids=torch.tensor(ids), loss_mask=mask.clone(), attention_mask=mask)


def counting(ids: Tensor, mask: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Logits that are greatest at (sum of the sequence's real tokens) mod V, if it ends where it is said to."""
    ends = (torch.arange(ids.shape[1]) * mask).amax(1)
    assert torch.equal(ends, last)
    assert defect(mask) is None
    return torch.arange(len(ids)), torch.nn.functional.one_hot((ids * mask).sum(1) % V, V).float()


def expected(row: list[int], new: int) -> list[int]:
    for _ in range(new):
        row = [*row, sum(row) % V]
    return row


@pytest.mark.parametrize("side", ["right", "left"])
def test_each_sequence_goes_on_where_it_ends(side: str) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    tokens = continued(prompts(*rows, side=side), sample(), counting)
    for i, row in enumerate(rows):
        real = tokens.attention_mask[i]
        assert tokens.input_ids[i][real].tolist() == expected(row, 3)
        assert tokens.loss_mask[i][real].tolist() == [False] * len(row) + [True] * 3
        assert bool((tokens.input_ids[i][~real] == 9).all())
        assert not bool(tokens.loss_mask[i][~real].any())
    assert tokens.input_ids.shape == (3, 6)
    assert tokens.pads == 3
    assert bool(tokens.attention_mask[:, 0 if side == "right" else -1].all())


def test_columns_of_pads_alone_are_dropped() -> None:
    asked_tokens = prompts([1, 2])
    wider = TokenSet(
        input_ids=torch.cat((asked_tokens.input_ids, torch.zeros(1, 4, dtype=torch.int64)), 1),
        loss_mask=torch.zeros(1, 6, dtype=torch.bool),
        attention_mask=torch.tensor([[1, 1, 0, 0, 0, 0]], dtype=torch.bool),
    )
    assert continued(wider, sample(), counting).input_ids.tolist() == [expected([1, 2], 3)]


def test_new_tokens_are_labelled_as_the_last_of_their_prompt() -> None:
    asked_tokens = prompts([1, 2], [3])
    labelled = TokenSet(
        input_ids=asked_tokens.input_ids,
        loss_mask=asked_tokens.loss_mask,
        attention_mask=asked_tokens.attention_mask,
        labels=torch.tensor([[0, 1], [2, 0]]),
        label_names=("a", "b", "c"),
    )
    tokens = continued(labelled, sample(new_tokens=2), counting)
    assert tokens.labels is not None
    assert tokens.labels[tokens.attention_mask].tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert tokens.label_names == ("a", "b", "c")


def test_progress_hears_of_every_token() -> None:
    heard: list[Progress] = []
    continued(prompts([1], [2]), sample(), counting, heard.append)
    assert [(p.done, p.total, p.work) for p in heard] == [(1, 3, 2), (2, 3, 4), (3, 3, 6)]


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    assert draw(logits, 0, torch.rand(2, dtype=torch.float64)).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_draw_inverts_the_cumulative_probabilities(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, V, dtype=torch.float64, generator=generator) * 3
    uniform = torch.rand(200, dtype=torch.float64, generator=generator)
    drawn_tokens = draw(logits, temperature, uniform).tolist()
    for row, u, token in zip(logits.tolist(), uniform.tolist(), drawn_tokens, strict=True):
        weights = [math.exp((x - max(row)) / temperature) for x in row]
        below, upto = (math.fsum(weights[:n]) / math.fsum(weights) for n in (token, token + 1))
        assert below - 1e-12 <= u < upto + 1e-12


def test_a_draw_never_takes_a_token_without_probability() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf, -math.inf]], dtype=torch.float64).expand(3, -1)
    uniform = torch.tensor([0.0, 0.5, math.nextafter(1, 0)], dtype=torch.float64)
    assert draw(logits, 1.0, uniform).tolist() == [1, 2, 2]


def test_seeds_decide() -> None:
    def flat(ids: Tensor, mask: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        return torch.arange(len(ids)), torch.zeros(len(ids), 1000)

    asked_tokens = prompts([1], [2], [3])
    first, same, second = (
        continued(asked_tokens, sample(temperature=1.0, new_tokens=8, seed=s), flat) for s in (0, 0, 1)
    )
    assert torch.equal(first.input_ids, same.input_ids)
    assert not torch.equal(first.input_ids, second.input_ids)
    table = torch.rand(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first.input_ids[:, 1:], (table * 1000).floor().long())


Write = Callable[..., Path]


@pytest.fixture
def recipe(qwen3_moe: Path, tmp_path: Path) -> Write:
    def write(tokens: str, name: str = "recipe.yaml") -> Path:
        lines = ['{"input_ids": [3, 1, 4, 1, 5]}', '{"input_ids": [9, 2, 6]}', '{"input_ids": [5, 3, 5, 8]}']
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
        path = tmp_path / name
        path.write_text(
            f"kind: recipe\ncheckpoint: {qwen3_moe}\ntokens: {tokens}\n"
            "reference: {profile: hf-eager, micro_batch: 2}\n"
            "candidate: {profile: hf-default, micro_batch: 2}\n"
            "gate: {metric: k3, below: 1e-3}\n",
            "utf-8",
        )
        return path

    return write


@pytest.mark.parametrize(("side", "profile"), [("candidate", "hf-default"), ("reference", "hf-eager")])
@pytest.mark.parametrize("resident", [True, False])
def test_a_side_samples_from_its_own_forward(
    recipe: Write, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch, side: str, profile: str, resident: bool
) -> None:
    monkeypatch.setattr(store, "available_bytes", lambda _: 2**40 if resident else None)
    path = recipe(f"{{file: prompts.jsonl, sample: {{from: {side}, new_tokens: 4, temperature: 0}}}}")
    tokens = generate(prepare(path, device="cpu")).tokens
    for step in range(4):
        columns = slice(0, 5 + step)
        mask = tokens.attention_mask & ~(tokens.loss_mask.cumsum(1) > step)
        logits = forward(
            qwen3_moe,
            tokens.input_ids[:, columns],
            attention_mask=mask[:, columns],
            profile=profile,
            micro_batch=2,
            device="cpu",
        )["logits"]
        for row, length in enumerate((5, 3, 4)):
            assert tokens.input_ids[row, length + step] == logits[row, length + step - 1].argmax()


def test_sampled_tokens_written_and_read_give_the_same_report(recipe: Write, tmp_path: Path) -> None:
    path = recipe("{file: prompts.jsonl, sample: {from: candidate, new_tokens: 5, seed: 3}}")
    write_tensors(tmp_path / "out.safetensors", *file_contents(generate(prepare(path, device="cpu")).tokens))
    sampled = bisect(path, device="cpu")
    again = bisect(recipe("{file: out.safetensors, sampled_from: candidate}", "again.yaml"), device="cpu")
    assert sampled.metrics == again.metrics
    assert sampled.verdict == again.verdict
    assert sampled.run.scored_tokens == 15
    assert sampled.run.pads == again.run.pads == 3
    assert sampled.run.sampling == "5 new tokens per prompt, temperature 1, seed 3"
    assert again.run.sampling is None
    assert sampled.warnings == ()


@pytest.mark.parametrize(
    ("sampled", "reference", "candidate", "message"),
    [
        (0, 1, 1, "The tokens are sampled at temperature 0, log-probabilities taken at 1: .* 1 for a gate.$"),
        (
            0.7,
            1,
            1,
            "sampled at temperature 0.7, log-probabilities taken at 1: .* log_probs:temperature to 0.7 on",
        ),
        (0.7, 0.7, 1, "sampled at temperature 0.7, log-probabilities taken at 1: "),
        (1, 0.5, 2, "sampled at temperature 1, log-probabilities taken at 0.5 and 2: "),
        (0.7, 0.7, 0.7, None),
    ],
)
def test_another_temperature_than_the_log_probabilities_is_warned_of(
    recipe: Write, sampled: float, reference: float, candidate: float, message: str | None
) -> None:
    path = recipe(f"{{file: prompts.jsonl, sample: {{from: candidate, new_tokens: 2, temperature: {sampled}}}}}")
    text = path.read_text("utf-8")
    for profile, temperature in (("hf-eager", reference), ("hf-default", candidate)):
        text = text.replace(
            f"profile: {profile},", f'profile: {profile}, set: {{"log_probs:temperature": {temperature}}},'
        )
    path.write_text(text, "utf-8")
    warnings = bisect(path, device="cpu").warnings
    assert len(warnings) == (message is not None)
    assert message is None or re.search(message, warnings[0])


def truncated(recipe: Write, sample_lines: str, settings: str) -> Path:
    """The recipe whose candidate has these settings of log_probs."""
    path = recipe(f"{{file: prompts.jsonl, sample: {{from: candidate, new_tokens: 4, {sample_lines}}}}}")
    text = path.read_text("utf-8").replace("hf-default, micro_batch: 2", f"hf-default, micro_batch: 2, set: {settings}")
    path.write_text(text, "utf-8")
    return path


def test_a_side_that_keeps_one_token_samples_the_likeliest(recipe: Write) -> None:
    """Whatever the seed."""
    greedy = generate(
        prepare(recipe("{file: prompts.jsonl, sample: {from: candidate, new_tokens: 4, temperature: 0}}"))
    )
    for seed in range(3):
        path = truncated(
            recipe, f"temperature: 0.7, seed: {seed}", '{"log_probs:temperature": 0.7, "log_probs:top_k": 1}'
        )
        tokens = generate(prepare(path, device="cpu")).tokens
        assert torch.equal(tokens.input_ids, greedy.tokens.input_ids)


def test_no_sampled_token_is_outside_what_its_side_keeps(recipe: Write) -> None:
    settings = '{"log_probs:top_p": 0.3, "log_probs:min_p": 0.1, "log_probs:repetition_penalty": 1.3}'
    report = bisect(truncated(recipe, "seed: 1", settings))
    assert (report.metrics.outside_tokens, report.metrics.nonfinite_tokens) == (0, 0)
    assert report.metrics.mean_abs_delta > 0.1


def test_tokens_outside_are_counted_and_fail(recipe: Write) -> None:
    """The reference samples from all tokens, and the candidate says that it keeps one."""
    path = truncated(recipe, "seed: 0", '{"log_probs:top_k": 1}')
    path.write_text(path.read_text("utf-8").replace("from: candidate", "from: reference"), "utf-8")
    report = bisect(path)
    assert 0 < report.metrics.outside_tokens <= 12
    assert report.nonfinite is None
    assert report.verdict.status == "fail"
    assert report.verdict.reason.startswith("sampled tokens outside the kept set, of log-probability -inf: ")


def test_another_temperature_than_that_of_the_kept_tokens_is_refused(recipe: Write) -> None:
    path = truncated(recipe, "temperature: 0.5", '{"log_probs:temperature": 0.7, "log_probs:top_p": 0.9}')
    says = r"recipe.yaml:3: temperature 0.5, and the candidate, which leaves tokens out .*temperature 0.7. Give both"
    with pytest.raises(SpecError, match=says):
        generate(prepare(path, device="cpu"))


def test_nothing_to_sample(recipe: Write) -> None:
    study = prepare(recipe("{file: prompts.jsonl, sampled_from: candidate}"), device="cpu")
    assert generate(study) is study
    with pytest.raises(SpecError, match=r"recipe\.yaml:3: tokens has no `sample:`"):
        required_sample(study)


def test_logits_that_are_not_finite_are_refused(recipe: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepare(recipe("{file: prompts.jsonl, sample: {from: candidate, new_tokens: 2}}"), device="cpu")
    broken = torch.full((3, V), math.nan)
    monkeypatch.setattr("moeparity.bisection.sample._forward", lambda *_: lambda *_: (torch.arange(3), broken))
    with pytest.raises(TokensError, match="the candidate's logits hold NaN or infinity"):
        generate(study)
