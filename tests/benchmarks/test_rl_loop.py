"""The loop of online RL: killed and resumed it ends with the same digest; each setting is evaluated a second way."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from benchmarks.rl_loop import by_trl, measure, task
from benchmarks.rl_loop.model import CONFIG, LAYERS, TEMPERATURE, distribution, fresh, log_probs, routed
from benchmarks.rl_loop.objective import CLIP, advantages, loss, weights
from benchmarks.rl_loop.page import reading
from benchmarks.rl_loop.quantised import multiplied_out, quantised
from benchmarks.rl_loop.run import run
from benchmarks.rl_loop.sampler import by_profile, by_transformers
from benchmarks.rl_loop.seeds import beside, growth, over, push, ratio
from benchmarks.rl_loop.settings import SETTINGS
from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Phase, Schedule, Span, Step
from tests.command import ROOT


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights, large enough for sharp distributions."""
    drawn = fresh(3)
    with torch.no_grad():
        for weight in drawn.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    return drawn


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    prompts, noise = task.batch(0, 0)
    return prompts[::4], noise[::4]


def _command(folder: Path) -> list[str]:
    settings = ("--setting", "lag 16", "--setting", "fp8, replay")
    words = (str(folder), *settings, "--steps", "5", "--seeds", "1", "--keep", "2")
    return [sys.executable, "-m", "benchmarks.rl_loop", *words]


def _digests(folder: Path) -> dict[str, str]:
    done = subprocess.run(_command(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    return {path.parent.name: json.loads(path.read_text())["digest"] for path in folder.glob("*/5-steps.json")}


def test_killed_and_resumed_it_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Killed as soon as the second training has kept a state; the first one is at its end then."""
    whole = _digests(tmp_path / "whole")
    assert set(whole) == {"lag-16-0", "fp8-replay-0"}
    assert len(set(whole.values())) == 2
    cut = tmp_path / "cut"
    cut.mkdir()
    shutil.copy(tmp_path / "whole" / "warm-0.pt", cut)
    with subprocess.Popen(_command(cut), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not (cut / "fp8-replay-0" / "state.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not (cut / "fp8-replay-0" / "5-steps.json").exists()
    assert _digests(cut) == whole


def test_fewer_steps_than_were_kept_are_refused(tmp_path: Path) -> None:
    assert len(run(SETTINGS["raw"], 0, 2, tmp_path / "raw", keep=1)["rows"]) == 2
    with pytest.raises(SystemExit, match="is at step 2, behind the 1 asked for; give another folder"):
        run(SETTINGS["raw"], 0, 1, tmp_path / "raw")


@pytest.mark.live
@pytest.mark.parametrize("name", by_trl.CASES)
def test_trl_trains_as_this_loop_does(name: str, tmp_path: Path) -> None:
    """GRPO of a real TRL, on the same prompts and noise: the samples' rewards, entropies and ratios of both steps."""
    of_trl = by_trl.run(by_trl.CASES[name], 0, 2, tmp_path / "trl")["rows"]
    of_loop = run(SETTINGS[name], 0, 2, tmp_path / "loop")["rows"]
    assert len(of_trl) == len(of_loop) == 2
    for row, expected in zip(of_trl, of_loop, strict=True):
        for column in ("reward", "entropy", "k1"):
            assert row[column] == pytest.approx(expected[column], abs=1e-4), column
    assert (abs(of_loop[1]["k1"]) > 1e-2) == (name != "matched")


def test_the_reward_counts_digits_at_their_places() -> None:
    prompts = torch.tensor([[*task.HEADER, 3, 9, 0, 3, 1, task.END]])
    assert task.answers(prompts).tolist() == [[0, 1, 3, 3, 9]]
    assert task.reward(prompts, torch.tensor([[0, 1, 3, 9, 3]])).tolist() == pytest.approx([0.6])


def test_the_matched_sampler_has_the_trainers_bits(model: Any, folder: Path, batch: tuple[Tensor, Tensor]) -> None:
    """From a guess that is wrong everywhere, it comes to the samples that transformers decodes."""
    prompts, noise = batch
    guess = torch.cat([prompts, torch.full((len(prompts), task.DIGITS), task.END)], 1)
    rollouts = by_profile(SETTINGS["matched"], folder, guess, noise)
    with torch.no_grad(), routed(model, None) as routes:
        scores = distribution(model, rollouts.ids)
    assert same_bits(rollouts.record, scores.gather(2, rollouts.ids[:, task.PROMPT :, None])[:, :, 0])
    assert (scores + noise).argmax(-1).equal(rollouts.ids[:, task.PROMPT :])
    live = by_transformers(SETTINGS["raw"], model, prompts, noise, None)
    assert live.ids.equal(rollouts.ids)
    assert all(a.equal(b) for a, b in zip(routes, rollouts.routes, strict=True))
    assert len(routes) == LAYERS


def test_raw_is_recorded_before_the_temperature(model: Any, batch: tuple[Tensor, Tensor]) -> None:
    rollouts = by_transformers(SETTINGS["raw"], model, *batch, None)
    with torch.no_grad():
        logits = model(rollouts.ids[:, :-1]).logits[:, task.PROMPT - 1 :].double()
    for sequence, place in ((0, 0), (3, 2), (7, 4)):
        row = logits[sequence, place].tolist()
        token = rollouts.ids[sequence, task.PROMPT + place]
        expected = row[token] - math.log(sum(map(math.exp, row)))
        assert float(rollouts.record[sequence, place]) == pytest.approx(expected, abs=1e-5)
        hot = [x / TEMPERATURE for x in row]
        assert abs(hot[token] - math.log(sum(map(math.exp, hot))) - expected) > 1e-3


def test_the_stale_header_is_that_of_a_schedule(model: Any, folder: Path, batch: tuple[Tensor, Tensor]) -> None:
    """moeparity's forward with an update behind the header, on steps as they are decoded."""
    prompts, noise = batch
    newer = fresh(4)
    newer.save_pretrained(folder / "newer")
    rollouts = by_transformers(SETTINGS["stale prefix"], newer, prompts, noise, model)
    border, last, rows = len(task.HEADER), task.PROMPT + task.DIGITS - 1, range(len(prompts))
    parts: list[tuple[int, int, Phase, int]] = [(0, border, "prefill", 1), (border, task.PROMPT, "chunk", 0)]
    parts += [(at, at + 1, "decode", 0) for at in range(task.PROMPT, last)]
    steps = [
        Step(spans=tuple(Span(row, first, end) for row in rows), phase=phase, lag=lag)
        for first, end, phase, lag in parts
    ]
    options: dict[str, Any] = {"profile": "hf-default", "dtype": "fp32", "save": ["log_probs"]}
    options["settings"] = SETTINGS["matched"].all_choices
    ids = rollouts.ids[:, :-1]
    schedule = Schedule(steps=tuple(steps))
    values = forward(folder / "newer", ids, schedule=schedule, earlier=[folder], **options)["log_probs"]
    scored = values[:, task.PROMPT - 1 :].gather(2, rollouts.ids[:, task.PROMPT :, None])[:, :, 0]
    assert same_bits(rollouts.record, scored)
    assert float((log_probs(newer, rollouts.ids).detach() - scored).abs().max()) > 1e-3


def test_fp8_weights_are_the_nearest_codes_with_a_scale_for_each_row(model: Any, folder: Path, tmp_path: Path) -> None:
    before = model.state_dict()
    of = multiplied_out(quantised(folder, tmp_path / "codes", "fp8"), before)
    assert set(of) == set(before)
    name = "model.layers.1.mlp.experts.down_proj"
    row = before[name][5, 7].double()
    scale = float(torch.tensor(float(row.abs().max()) / 448, dtype=torch.float32))
    codes = [float(torch.tensor(x / scale).to(torch.float8_e4m3fn)) for x in row.tolist()]
    assert of[name][5, 7].tolist() == pytest.approx([code * scale for code in codes], rel=1e-6)
    assert not of[name].equal(before[name])
    assert of["lm_head.weight"].equal(before["lm_head.weight"])
    assert of["model.layers.0.mlp.gate.weight"].equal(before["model.layers.0.mlp.gate.weight"])


def test_replayed_ids_have_the_trainers_own_weights(model: Any, batch: tuple[Tensor, Tensor]) -> None:
    prompts = batch[0]
    rows, top_k = prompts.numel(), CONFIG["num_experts_per_tok"]
    ids = torch.stack([torch.randperm(CONFIG["num_experts"])[:top_k] for _ in range(rows)])
    calls: list[Any] = []
    with torch.no_grad(), routed(model, [ids] * LAYERS):
        # It is called behind the hook that replays, so it sees what the block is given.
        hook = model.model.layers[0].mlp.gate.register_forward_hook(lambda *call: calls.append(call[2]))
        replayed = model(prompts).logits
        hook.remove()
    with torch.no_grad(), routed(model, None) as routes:
        plain = model(prompts).logits
    with torch.no_grad(), routed(model, routes):
        itself = model(prompts).logits
    logits, scores, used = calls[0]
    assert used.equal(ids)
    probabilities = [math.exp(x) for x in logits[9].tolist()]
    chosen = [probabilities[expert] for expert in ids[9].tolist()]
    assert scores[9].tolist() == pytest.approx([x / sum(chosen) for x in chosen], rel=1e-5)
    assert itself.equal(plain)
    assert not replayed.equal(plain)


@pytest.mark.parametrize("objective", ["recorded", "tis", "mis"])
def test_the_loss_and_its_gradient_token_by_token(objective: Any) -> None:
    """Against scalars; deltas on both sides of every bound."""
    record = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5]])
    delta = torch.tensor([[0.1, 0.9, -0.9], [-0.1, 0.3, -0.3]])
    gains = torch.tensor([1.5, -0.5])
    current = (record + delta).requires_grad_()
    value, clipped = loss(objective, current, record, gains)
    value.backward()
    terms, slopes = [], []
    for d, gain in zip(delta.flatten().tolist(), gains.repeat_interleave(3).tolist(), strict=True):
        rho = math.exp(d)
        weight = {"tis": min(rho, 2.0), "mis": rho if 0.5 <= rho <= 2 else 0.0}.get(objective, 1.0)
        r = rho if objective == "recorded" else 1.0
        bounded = min(max(r, 1 - CLIP), 1 + CLIP)
        is_free = r * gain <= bounded * gain
        terms.append(-weight * min(r * gain, bounded * gain) / 6)
        slopes.append(-weight * r * gain / 6 if is_free else 0.0)
    assert float(value.detach()) == pytest.approx(sum(terms), rel=1e-5)
    assert current.grad is not None
    assert current.grad.flatten().tolist() == pytest.approx(slopes, rel=1e-5)
    expected = [slope == 0 and objective == "recorded" for slope in slopes]
    assert clipped.flatten().tolist() == expected
    assert any(expected) == (objective == "recorded")


def test_weights_at_their_bounds() -> None:
    delta = torch.tensor([math.log(2) + 1e-9, math.log(2) - 1e-9, -math.log(2) - 1e-9, -5.0], dtype=torch.float64)
    assert weights("tis", delta).tolist() == pytest.approx([2, 2, 0.5, math.exp(-5)])
    assert weights("mis", delta).tolist() == pytest.approx([0, 2, 0, 0])
    assert weights("recorded", delta).tolist() == [1, 1, 1, 1]


def test_advantages_are_those_of_each_group() -> None:
    of = advantages(torch.tensor([0.0, 1.0, 0.5, 0.5]), 2)
    assert of.tolist() == pytest.approx([-0.5 / (math.sqrt(0.5) + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4), 0, 0])


def test_a_row_of_metrics_against_sums() -> None:
    trainer, record = torch.tensor([[-1.0, -2.0], [-0.1, -3.0]]), torch.tensor([[-1.1, -1.5], [-0.1, -3.9]])
    row = measure.row(trainer, record, torch.zeros(2, 2, dtype=torch.int64))
    deltas = (trainer.double() - record.double()).flatten().tolist()
    ratios = [math.exp(d) for d in deltas]
    assert row["k1"] == pytest.approx(-sum(deltas) / 4)
    assert row["k3"] == pytest.approx(sum(r - 1 - d for r, d in zip(ratios, deltas, strict=True)) / 4)
    assert row["mean_ratio"] == pytest.approx(sum(ratios) / 4)
    assert row["ess_fraction"] == pytest.approx(sum(ratios) ** 2 / 4 / sum(r * r for r in ratios))
    assert row["f2"] == pytest.approx(0.25)


def _seeds(ratios: list[float], ess: float = 0.9) -> list[list[dict[str, float]]]:
    columns = {"mean_abs_delta": 0.1, "ess_fraction": ess}
    return [[{**columns, "mean_ratio": of, "k3": 0.5 + step} for step in range(30)] for of in ratios]


def test_intervals_over_seeds() -> None:
    values = [1.0, 2.5, 2.0]
    low, high = stats.t.interval(0.95, 2, 5.5 / 3, stats.sem(values))
    assert (over(values).low, over(values).high) == pytest.approx((low, high))
    assert over([1.0]).low == -math.inf
    assert over([1.0, math.nan]).sign == 0
    assert (over([1.0, 1.1, 1.2]).sign, over([-1.0, -1.1, -1.2]).sign, over(values).sign) == (1, -1, 0)
    grown = growth(_seeds([1.0, 1.0]), "k3")
    assert grown.mean == pytest.approx(math.log((20.5 + 29.5) / (1.5 + 10.5)))
    assert beside(_seeds([1.2, 1.3]), _seeds([1.0, 1.0]), "mean_ratio").mean == pytest.approx(0.25)
    assert ratio(_seeds([1.2, 1.2]), _seeds([1.0, 1.0]), "mean_ratio").mean == pytest.approx(math.log(1.2))


def test_what_is_said_of_a_push() -> None:
    assert push(_seeds([1.01, 1.03])).mean == pytest.approx(0.02)
    assert reading(_seeds([1.10, 1.11, 1.12])) == "pushes"
    assert reading(_seeds([0.99, 1.01, 1.02])) == "adds variance, no push shown"
    assert reading(_seeds([1.10, 1.11, 1.12], ess=0.3)) == "is not decided: few tokens carry the mean"
    equal = [[{"mean_abs_delta": 0.0, "mean_ratio": 1.0, "ess_fraction": 1.0}]] * 3
    assert reading(equal) == "has equal bits"
