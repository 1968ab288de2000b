"""One training under one setting with one seed, which goes on where it was killed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from benchmarks.rl_loop import measure, task
from benchmarks.rl_loop.model import decoded, distribution, fresh, of_completions, routed, warm
from benchmarks.rl_loop.objective import advantages, loss
from benchmarks.rl_loop.quantised import multiplied_out, quantised
from benchmarks.rl_loop.sampler import Rollouts, by_profile, by_transformers
from benchmarks.rl_loop.settings import Setting
from moeparity.metrics.routing import flips

RATE = 3e-4
"""The learning rate of Adam."""
TESTED_EVERY, TESTED = 20, 128
"""Steps from one test to the next, and prompts of a test."""
Weights = Mapping[str, Tensor]


@dataclass(slots=True)
class Training:
    """A training as it stands. first: the model as it was at the beginning. sampler: a model for weights that lag.
    history: the weights before the last updates, as many as the lag needs; the oldest first. rows: what was measured in
    each step.
    """

    setting: Setting
    seed: int
    model: Qwen3MoeForCausalLM
    optimizer: torch.optim.Optimizer
    first: Qwen3MoeForCausalLM
    sampler: Qwen3MoeForCausalLM
    history: deque[Weights]
    rows: list[dict[str, float]] = field(default_factory=list)


def run(setting: Setting, seed: int, steps: int, folder: Path, keep: int = 20) -> Mapping[str, Any]:
    """The result of a training in its own `folder`, which holds it if it is at its end: `rows`, `seconds` of processor
    time, and the `digest` of the last weights and all rows. Every `keep` steps its state is kept. More steps go on
    behind the last.
    """
    result = folder / f"{steps}-steps.json"
    if result.exists():
        existing: Mapping[str, Any] = json.loads(result.read_text("utf-8"))
        return existing
    folder.mkdir(parents=True, exist_ok=True)
    training, seconds = _begun(setting, seed, folder)
    if len(training.rows) > steps:
        raise SystemExit(f"{folder} is at step {len(training.rows)}, behind the {steps} asked for; give another folder")
    start = time.process_time()
    while len(training.rows) < steps:
        training.rows.append(step(training, folder))
        if len(training.rows) % keep == 0:
            _keep(training, seconds + time.process_time() - start, folder)
    done = {"rows": training.rows, "seconds": seconds + time.process_time() - start, "digest": digest(training)}
    put(result, json.dumps(done).encode())
    return done


def step(training: Training, folder: Path) -> dict[str, float]:
    """Sample, measure, update; what was measured."""
    setting, model, number = training.setting, training.model, len(training.rows)
    prompts, noise = task.batch(training.seed, number)
    rollouts = _sampled(training, folder, prompts, noise)
    rewards = task.reward(prompts, rollouts.ids[:, task.PROMPT :])
    with routed(model, rollouts.routes if setting.replay else None) as routes:
        scores = distribution(model, rollouts.ids)
    current = of_completions(scores, rollouts.ids)
    objective, clipped = loss(setting.objective, current, rollouts.record, advantages(rewards, task.GROUP))
    training.history.append(_copied(model))
    training.optimizer.zero_grad()
    torch.autograd.backward(objective)
    training.optimizer.step()
    row = dict(measure.row(current.detach(), rollouts.record, rollouts.ids[:, task.PROMPT :]))
    row["clip rate"] = float(clipped.float().mean())
    if rollouts.routes:
        pairs = zip(routes, rollouts.routes, strict=True)
        row["flips"] = float(torch.stack([flips(*pair)[1] for pair in pairs]).double().mean())
    row["entropy"] = float(-(scores.detach().exp() * scores.detach()).sum(-1).mean())
    row["reward"] = float(rewards.mean())
    row["lag"] = float(len(training.history) - 1)
    if (number + 1) % TESTED_EVERY == 0:
        row["tested"] = tested(model)
    return row


def tested(model: Qwen3MoeForCausalLM) -> float:
    """The mean reward of greedy completions of prompts that are the same for all trainings, by the trainer's model."""
    prompts = task.prompts(TESTED, torch.Generator().manual_seed(7))
    return float(task.reward(prompts, decoded(model, prompts, None)[0]).mean())


def digest(training: Training) -> str:
    """SHA-256 of the weights and of all rows."""
    of = hashlib.sha256(json.dumps(training.rows).encode())
    for name, weight in sorted(training.model.state_dict().items()):
        of.update(name.encode())
        of.update(weight.contiguous().numpy().tobytes())
    return of.hexdigest()


def _sampled(training: Training, folder: Path, prompts: Tensor, noise: Tensor) -> Rollouts:
    """The rollouts of the sampler's weights, which lag behind by as many updates as the setting says, or all so far."""
    setting, sampler, weights = training.setting, training.model, folder / "weights"
    if training.history and setting.lag:
        sampler = training.sampler
        sampler.load_state_dict(dict(training.history[0]))
    if not setting.profile:
        header_by = training.first if setting.stale_prefix else None
        return by_transformers(setting, sampler, prompts, noise, header_by)
    sampler.save_pretrained(weights)
    if setting.quantised:
        sampler, weights = training.sampler, quantised(weights, folder / "codes", setting.quantised)
        sampler.load_state_dict(multiplied_out(weights, training.model.state_dict()))
    guess = torch.cat([prompts, decoded(sampler, prompts, noise)[0]], 1)
    return by_profile(setting, weights, guess, noise)


def warmed(seed: int, folder: Path) -> Qwen3MoeForCausalLM:
    """The model with which all settings of a seed begin, kept in the folder of their folders."""
    start = folder / f"warm-{seed}.pt"
    if not start.exists():
        _put_tensors(start, warm(seed).state_dict())
    model = fresh(seed)
    model.load_state_dict(torch.load(start))
    return model


def _begun(setting: Setting, seed: int, folder: Path) -> tuple[Training, float]:
    """The training as it was kept last, or at its beginning, and the seconds that it has taken."""
    model = warmed(seed, folder.parent)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    history: deque[Weights] = deque(maxlen=setting.lag + 1)
    training = Training(setting, seed, model, optimizer, copy.deepcopy(model), fresh(seed), history)
    if not (folder / "state.pt").exists():
        return training, 0.0
    state = torch.load(folder / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    training.history.extend(state["history"])
    training.rows.extend(state["rows"])
    return training, state["seconds"]


def _keep(training: Training, seconds: float, folder: Path) -> None:
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "history": list(training.history),
        "rows": training.rows,
        "seconds": seconds,
    }
    _put_tensors(folder / "state.pt", state)


def _copied(model: Qwen3MoeForCausalLM) -> Weights:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def _put_tensors(path: Path, of: object) -> None:
    """A file that is there whole or not at all."""
    beside = path.with_suffix(f".{os.getpid()}")
    torch.save(of, beside)
    beside.replace(path)


def put(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)
