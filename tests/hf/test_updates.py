"""Weights that change under running sequences, against live transformers: the cache that an older model has filled is
handed to a newer one, or filled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity import bisect
from moeparity.bisection.updates.split import PARTS, rounded
from moeparity.engine.forward import forward
from moeparity.numerics.bits import int_view, same_bits
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.updates import on_versions
from tests.hf.compare import DTYPES, PROFILES, opened, tokens
from tests.hf.reference import load
from tests.hf.rollouts import logits_by_step, moved, on_old_cache
from tests.hf.test_schedules import BY_MODEL, steps
from tests.planted.places import write_recipe
from tests.small_models import Shallow

Older = Callable[[Path, int], Path]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Older:
    """A checkpoint so many updates back."""

    def make(checkpoint: Path, lag: int) -> Path:
        return moved(checkpoint, tmp_path_factory.mktemp(f"{checkpoint.name}_back_{lag}"), lag)

    return make


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@BY_MODEL
def test_a_cache_that_older_models_filled(shallow: Shallow, older: Older, name: str, profile: str, dtype: str) -> None:
    """Two updates, in between decode steps; and one in the prompt, between chunks."""
    newest = shallow(name)
    folders = [older(newest, 2), older(newest, 1), newest]
    models = [load(folder, profile, DTYPES[dtype]) for folder in folders]
    ids = tokens(opened(newest).vocab_size, (2, 14))
    for edges, at in (((7, *range(8, 15)), (9, 12)), ((4, 9, *range(10, 15)), (4, 13))):
        in_order = on_versions(steps(2, *edges), [at] * 2)
        ours = forward(
            opened(newest),
            ids,
            profile=profile,
            dtype=dtype,
            schedule=Schedule(steps=tuple(in_order)),
            earlier=folders[1::-1],
        )["logits"]
        starts = (0, *edges[:-1])
        of_steps = [models[sum(update <= start for update in at)] for start in starts]
        assert same_bits(logits_by_step(of_steps, ids, edges), ours)


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_cache_that_is_filled_anew(shallow: Shallow, older: Older, name: str, dtype: str) -> None:
    """By a prefill of all rows before the update; so are states."""
    newest = shallow(name)
    folders = [older(newest, 2), older(newest, 1), newest]
    models = [load(folder, "hf-default", DTYPES[dtype]) for folder in folders]
    ids, at = tokens(opened(newest).vocab_size, (2, 14)), (9, 12)
    fields = {"decode": {"from": 7}, "updates": {"at": list(at), "cache": "recomputed"}}
    ours = forward(opened(newest), ids, dtype=dtype, profile="hf-default", schedule=fields, earlier=folders[1::-1])
    parts = []
    for model, first, last in zip(models, (0, *at), (*at, 14), strict=True):
        edges = (first or 7, *range((first or 7) + 1, 15))
        parts.append(logits_by_step([model] * len(edges), ids, edges, rows=1)[:, first:last])
    assert same_bits(torch.cat(parts, 1)[:, 6:], ours["logits"][:, 6:])


@pytest.mark.parametrize("at", [0, 1, 3, 6, 7, 13, 14, [3, 3], [0, 14], [[5, 9, 14]], [[0, 7, 13], [6, 7, 13]]])
def test_wherever_updates_come_in(qwen3_moe: Path, older: Older, at: Any) -> None:
    """At the first row, the last, in the prompt, behind the end, twice, at other rows in each sequence: each sequence
    has the bits of its own rollout.
    """
    updates = [at] if isinstance(at, int) else at
    folders = [older(qwen3_moe, lag) for lag in range(len(updates), 0, -1)] + [qwen3_moe]
    models = [load(folder, "hf-eager", torch.float32) for folder in folders]
    ids = tokens(opened(qwen3_moe).vocab_size, (3, 14))
    fields = {"decode": {"from": 7, "batch": "single"}, "updates": {"at": at}}
    ours = forward(opened(qwen3_moe), ids, dtype="fp32", schedule=fields, earlier=folders[-2::-1])["logits"]
    for row in range(3):
        places = [update if isinstance(update, int) else update[row] for update in updates]
        edges = sorted({*range(7, 15), *(place for place in places if place)})
        of_steps = [models[sum(place <= start for place in places)] for start in (0, *edges[:-1])]
        live = logits_by_step(of_steps, ids[row : row + 1], edges, rows=1)
        ends = [edge - 1 for edge in edges]
        assert same_bits(live[:, ends], ours[row : row + 1, ends])


@pytest.mark.parametrize("at", [0, 1])
def test_sequences_of_one_token(qwen3_moe: Path, older: Older, at: int) -> None:
    ids, folders = tokens(opened(qwen3_moe).vocab_size, (2, 1)), [qwen3_moe, older(qwen3_moe, 1)]
    ours = forward(opened(qwen3_moe), ids, dtype="fp32", schedule={"updates": {"at": at}}, earlier=folders[1:])[
        "logits"
    ]
    with torch.no_grad():
        assert same_bits(load(folders[at], "hf-eager", torch.float32)(ids, use_cache=False).logits, ours)


@pytest.mark.parametrize(("at", "column"), [([14, 11, 8], 14), ([0, 0, 0], 0), ([9, 6, 3], 9)])
def test_padding_in_front(qwen3_moe: Path, older: Older, at: list[int], column: int) -> None:
    """A batch whose rows begin at other columns: the update comes in behind all rows, before all, and at one column."""
    ids, mask = tokens(opened(qwen3_moe).vocab_size, (3, 14)), torch.ones(3, 14, dtype=torch.int64)
    mask[1, :3] = mask[2, :6] = 0
    folders = [older(qwen3_moe, 1), qwen3_moe]
    models = [load(folder, "hf-eager", torch.bfloat16) for folder in folders]
    fields = {"decode": {"from": 14}, "updates": {"at": [at]}}
    ours = forward(opened(qwen3_moe), ids, attention_mask=mask, dtype="bf16", schedule=fields, earlier=folders[:1])[
        "logits"
    ]
    edges = sorted({column, 14} - {0})
    of_steps = [models[column <= start] for start in (0, *edges[:-1])]
    ends = [edge - 1 for edge in edges]
    assert same_bits(logits_by_step(of_steps, ids, edges, mask=mask, rows=1)[:, ends], ours[:, ends])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "qwen3_next"])
def test_the_split_is_that_of_four_live_runs(
    tmp_path: Path, shallow: Shallow, older: Older, name: str, dtype: str
) -> None:
    """Old and new weights, each on the kept and on the recomputed cache; and the trainer. Token by token, every bit."""
    newest = shallow(name)
    before, new = (load(folder, "hf-eager", DTYPES[dtype]) for folder in (older(newest, 1), newest))
    ids, prompt, update = tokens(opened(newest).vocab_size, (3, 14)), 7, 10
    scored = torch.zeros(3, 14, dtype=torch.bool)
    scored[:, prompt:] = True
    candidate = {"dtype": dtype, "schedule": {"decode": {"from": "prompt"}, "updates": {"at": update}}}
    path = write_recipe(
        tmp_path,
        newest,
        {"input_ids": ids, "loss_mask": scored.long()},
        {"dtype": dtype, "micro_batch": 3},
        candidate,
        earlier=[str(older(newest, 1))],
    )
    report = bisect(path, device="cpu")
    edges = (prompt, *range(prompt + 1, 15))
    anew = (update, *range(update + 1, 15))
    old_kept = logits_by_step([before] * len(edges), ids, edges, rows=1)
    rollout = logits_by_step([before if edge <= update else new for edge in edges], ids, edges, rows=1)
    new_recomputed = logits_by_step([new] * len(anew), ids, anew, rows=1)
    new_in_steps = logits_by_step([new] * len(edges), ids, edges, rows=1)
    new_on_old = on_old_cache(new, before, ids, edges, rows=1)
    with torch.no_grad():
        trainer = new(ids, use_cache=False).logits

    def log_p(logits: torch.Tensor) -> torch.Tensor:
        of_next = logits.double().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        return rounded(torch.nn.functional.pad(of_next, (1, 0)))

    is_old = torch.arange(14) - 1 < update
    recomputed = torch.where(is_old, log_p(old_kept), log_p(new_recomputed))
    newest_weights = torch.where(is_old, log_p(new_in_steps), log_p(new_recomputed))
    truth = (
        log_p(rollout) - recomputed,
        recomputed - newest_weights,
        torch.zeros(3, 14, dtype=torch.float64),
        newest_weights - log_p(trainer),
    )
    assert report.per_token is not None
    assert report.per_token.update_parts is not None
    parts = torch.from_numpy(report.per_token.update_parts)
    for part, expected, ours in zip(PARTS, truth, parts, strict=True):
        assert torch.equal(int_view(ours), int_view(expected * scored + 0.0)), part
    assert torch.equal(parts.sum(0), (log_p(rollout) - log_p(trainer)) * scored)
    assert bool((truth[0][:, update + 1 :] != 0).any()), "the old cache shows behind the update"
    assert not bool(truth[0][:, : update + 1].any()), "and not before"
    assert report.updates is not None
    stale = report.updates.stale_keys
    assert stale is not None
    assert (stale.tokens, stale.sequence, stale.token, stale.lag, stale.oldest_key) == (9, 0, update + 1, 0, 1)
    on_kept = torch.where(is_old, log_p(new_on_old), log_p(rollout))
    weights_first = ((on_kept - newest_weights)[scored].mean(), (log_p(rollout) - on_kept)[scored].mean())
    for shown, in_other_order in zip(report.updates.parts[:2], weights_first, strict=True):
        low, high = sorted((shown.value.estimate, float(in_other_order)))
        assert (shown.low, shown.high) == pytest.approx((low, high), rel=1e-12)
