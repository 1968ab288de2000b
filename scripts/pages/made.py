"""What the guides and the gallery run on beside the shipped recipes: logs, checkpoints and launch files, made anew.

All of it comes from the shipped checkpoint: tokens are sampled from it, and what a server or a trainer is said to have
recorded is what it computes. `python -m scripts.pages.made NAME FOLDER` makes it for a reader who runs a guide's
commands.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import generate
from moeparity.engine.forward import forward
from moeparity.metrics.tokens import log_probs
from scripts.pages.page import ROOT
from scripts.pages.paths import prepared

CHECKPOINT = ROOT / "checkpoints" / "quickstart"
PROMPTS = ROOT / "recipes" / "rounding.safetensors"
PROMPT, NEW = 8, 56
"""Tokens of each prompt, and what follows it."""

SERVER = """\
python -m sglang.launch_server --model-path checkpoints/quickstart --tp 2 \\
  --attention-backend fa3 --mem-fraction-static 0.8
"""
TRAINER = """\
policy:
  model_name: checkpoints/quickstart
  precision: bfloat16
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    sequence_parallel: true
    moe_router_dtype: fp32
"""


def raw_log_probs(folder: Path) -> None:
    """Two logs of one policy sampled at temperature 0.7: `raw.jsonl`, whose server reports log-probabilities of the
    logits as they are, and `processed.jsonl`, whose server divides by the temperature first, as the trainer does.
    """
    ids = sampled(folder, temperature=0.7)
    server, trainer = (logits(ids, profile) for profile in ("hf-default", "hf-eager"))
    scored = chosen(trainer / 0.7, ids)
    write_log(folder / "raw.jsonl", ids, chosen(server, ids), scored)
    write_log(folder / "processed.jsonl", ids, chosen(server / 0.7, ids), scored)


def weight_sync(folder: Path) -> None:
    """A server that was left behind: `new/` is the checkpoint, `old/` that of a step before.

    Of 32 sequences every fourth was sampled before the weights came. `rollouts.jsonl` says which, `unsaid.jsonl` does
    not. `record.safetensors` is what a server that never took the new weights records; `new.yaml` and `old.yaml` hold
    it to both.
    """
    (folder / "new").symlink_to(CHECKPOINT)
    _step_back(CHECKPOINT, folder / "old")
    ids = sampled(folder)
    before, after = (chosen(logits(ids, "hf-default", folder / name), ids) for name in ("old", "new"))
    stale = torch.arange(len(ids)) % 4 == 0
    scored = chosen(logits(ids, "hf-eager"), ids)
    server = torch.where(stale[:, None], before, after)
    versions = (8 - stale.long()).tolist()
    write_log(folder / "unsaid.jsonl", ids, server, scored)
    write_log(folder / "rollouts.jsonl", ids, server, scored, versions=versions)
    mask = (torch.arange(ids.shape[1]) >= PROMPT).expand_as(ids).contiguous()
    save_file({"input_ids": ids, "loss_mask": mask, "logprobs": before.float()}, folder / "record.safetensors")
    for name in ("new", "old"):
        sides = {"profile": "hf-eager", "micro_batch": 8}
        tokens = {"file": "record.safetensors", "sampled_from": "candidate"}
        write_recipe(folder / f"{name}.yaml", name, tokens, sides, {**sides, "profile": "hf-default"})


def launch_files(folder: Path) -> None:
    """`server.sh` and `train.yaml`, of SGLang and NeMo-RL; `old.sh` and `new.sh`, of two releases of vLLM."""
    (folder / "server.sh").write_text(SERVER, "utf-8")
    (folder / "train.yaml").write_text(TRAINER, "utf-8")
    (folder / "old.sh").write_text(f"pip install vllm==0.8.5\nVLLM_USE_V1=0 {SERVED}", "utf-8")
    (folder / "new.sh").write_text(f"pip install vllm==0.18.1\n{SERVED}", "utf-8")


SERVED = """\
vllm serve checkpoints/quickstart \\
  --override-generation-config '{"temperature": 0.7}'
"""


def log_check(folder: Path) -> None:
    """`log.yaml`, which holds `rollouts.jsonl`, a log without faults, to bounds."""
    ids = sampled(folder)
    server, trainer = (chosen(logits(ids, profile), ids) for profile in ("hf-default", "hf-eager"))
    write_log(folder / "rollouts.jsonl", ids, server, trainer)
    (folder / "log.yaml").write_text(LOG, "utf-8")


LOG = """\
kind: log
files: [rollouts.jsonl]
gate: {metric: k3, below: 1e-3}
expect:
  verdict: pass
  metrics: {token_mult_prob_error: {below: 1.05}}
  causes: none
"""


def sampled(folder: Path, temperature: float = 1.0) -> Tensor:
    """The quickstart's first tokens, continued by the checkpoint under hf-default; int64 [32, PROMPT + NEW]."""
    prompts = load_file(PROMPTS)["input_ids"][:, :PROMPT].contiguous()
    save_file({"input_ids": prompts}, folder / "prompts.safetensors")
    sides = {"profile": "hf-default", "micro_batch": 32}
    sample = {"from": "candidate", "new_tokens": NEW, "temperature": temperature, "seed": 0}
    tokens = {"file": "prompts.safetensors", "sample": sample}
    write_recipe(folder / "sampling.yaml", str(CHECKPOINT), tokens, sides, sides)
    ids = generate(prepare(folder / "sampling.yaml", device="cpu")).tokens.input_ids
    (folder / "sampling.yaml").unlink()
    return ids


def logits(ids: Tensor, profile: str, checkpoint: Path = CHECKPOINT) -> Tensor:
    """Logits of a profile, fp64 [B, T, V]."""
    return forward(checkpoint, ids, profile=profile, micro_batch=8, device="cpu")["logits"].double()


def chosen(scores: Tensor, ids: Tensor) -> Tensor:
    """Of logits [B, T, V] the log-probabilities of the tokens, fp64 [B, T]; 0 for the first, which nothing predicts."""
    of_tokens = log_probs(scores, False)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(of_tokens, (1, 0))


def write_log(path: Path, ids: Tensor, server: Tensor, trainer: Tensor, *, versions: list[int] | None = None) -> None:
    """A log of our own format; where versions are given, the trainer's weights are of version 8."""
    mask = [int(at >= PROMPT) for at in range(ids.shape[1])]
    lines = []
    for row, (tokens, sampler, scores) in enumerate(zip(ids.tolist(), server.tolist(), trainer.tolist(), strict=True)):
        record = {"id": f"s{row}", "input_ids": tokens, "mask": mask, "logprobs": sampler, "trainer_logprobs": scores}
        if versions is not None:
            record |= {"versions": [versions[row]] * len(tokens), "trainer_version": 8}
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n", "utf-8")


def write_recipe(
    path: Path, checkpoint: str, tokens: Mapping[str, Any], reference: Mapping[str, Any], candidate: Mapping[str, Any]
) -> None:
    """A recipe with a gate on k3 at 1e-3."""
    keys = {"kind": "recipe", "checkpoint": checkpoint, "tokens": tokens, "reference": reference}
    keys |= {"candidate": candidate, "gate": {"metric": "k3", "below": 1e-3}}
    path.write_text(yaml.safe_dump(keys, sort_keys=False, default_flow_style=None), "utf-8")


def _step_back(checkpoint: Path, folder: Path) -> None:
    """A copy of a checkpoint as it may have been one step of training before: every weight a little other."""
    shutil.copytree(checkpoint, folder)
    (file,) = folder.glob("*.safetensors")
    draws = torch.Generator().manual_seed(0)
    tensors = {
        name: (tensor + 0.03 * tensor.std() * torch.randn(tensor.shape, generator=draws)).to(tensor.dtype)
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})


MAKERS = {make.__name__.replace("_", "-"): make for make in (raw_log_probs, weight_sync, launch_files, log_check)}

if __name__ == "__main__":
    _, chosen_name, place = sys.argv
    Path(place).mkdir(parents=True)
    prepared(Path(place), MAKERS[chosen_name])
