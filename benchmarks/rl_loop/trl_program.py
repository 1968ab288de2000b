"""GRPO of TRL 1.16.0 on the toy task, as `python trl_program.py CASE ANSWER`: its own trainer, transformers' rollouts.

CASE holds `weights` to begin with, `seed`, `steps`, `rate`, `raw`, whether the record is taken before the temperature,
and `corrected`, whether TRL weighs tokens by the record, truncated at 2.
ANSWER is a list of the steps: ids [B, PROMPT + DIGITS], `record` and `trainer` [B, DIGITS], and TRL's own `log`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from benchmarks.rl_loop import task
from benchmarks.rl_loop.model import TEMPERATURE, decoded, fresh, of_completions

LETTERS = "0123456789abcdef"
"""Of each token its letter."""
OPTIONS: dict[str, Any] = {
    "output_dir": "out",
    "use_cpu": True,
    "bf16": False,
    # With it a model in training fills no cache.
    "gradient_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
    "seed": 1,
    "shuffle_dataset": False,
    "per_device_train_batch_size": task.PROMPTS * task.GROUP,
    "num_generations": task.GROUP,
    "max_completion_length": task.DIGITS,
    "temperature": TEMPERATURE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "loss_type": "grpo",
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
}
"""As in this project's loop: one update for each batch, Adam at a constant rate, no clipping of gradients."""


class Recorded(GRPOTrainer):  # type: ignore[misc]
    """The trainer, with what it makes the loss of written down. It has put the rows into another order by then."""

    def __init__(self, case: dict[str, Any], **options: Any) -> None:
        self.case = case
        self.answer: list[dict[str, Any]] = []
        super().__init__(**options)
        if case["corrected"]:
            # TRL corrects by the record only if a vLLM has sampled. It is told so; nothing else of a vLLM is used.
            self.use_vllm, self.vllm_generation = True, SimpleNamespace(sync_weights=lambda: None)
            self._last_loaded_step = -1

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.answer.append(
            {
                "ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                "record": inputs["sampling_per_token_logps"],
            }
        )
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *inputs: Any, **options: Any) -> Any:
        computed = super()._get_per_token_logps_and_entropies(*inputs, **options)
        # Where it corrects by the record, it is called once more in front of each loss, with the rows as they were.
        if self.answer and "trainer" not in self.answer[-1]:
            self.answer[-1]["trainer"] = computed[0].detach().clone()
        return computed


def rollout(prompts: list[str], trainer: Recorded) -> dict[str, Any]:
    """What transformers samples, in the form in which TRL takes a sampler's log-probabilities."""
    prompt_ids, noise = task.batch(trainer.case["seed"], len(trainer.answer))
    assert _ids(prompts).equal(prompt_ids), "TRL asks for other prompts, or in another order"
    completions, logits = decoded(trainer.model, prompt_ids, noise)
    scores = (logits / (1.0 if trainer.case["raw"] else TEMPERATURE)).log_softmax(-1)
    record = of_completions(scores, torch.cat([prompt_ids, completions], 1))
    return {
        "prompt_ids": prompt_ids.tolist(),
        "completion_ids": completions.tolist(),
        "logprobs": record.tolist(),
    }


def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The task's own."""
    rewards: list[float] = task.reward(_ids(prompts), torch.tensor(completion_ids)).tolist()
    return rewards


def _ids(prompts: list[str]) -> torch.Tensor:
    return torch.tensor([[LETTERS.index(letter) for letter in prompt] for prompt in prompts])


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter; the last one pads, and ends a completion."""
    words = Tokenizer(models.WordLevel({letter: token for token, letter in enumerate(LETTERS)}, LETTERS[-1]))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    last = dict.fromkeys(("pad_token", "eos_token"), LETTERS[-1])
    made_by: type[Any] = PreTrainedTokenizerFast
    tokenizer_of_letters: PreTrainedTokenizerFast = made_by(tokenizer_object=words, padding_side="left", **last)
    return tokenizer_of_letters


def main(case_file: str, answer_file: str) -> None:
    """Train, and write down what was computed."""
    torch.set_num_threads(1)
    case = torch.load(case_file)
    model = fresh(case["seed"])
    model.load_state_dict(case["weights"])
    prompts = torch.cat([task.batch(case["seed"], step)[0][:: task.GROUP] for step in range(case["steps"])])
    rows = ["".join(LETTERS[token] for token in prompt) for prompt in prompts.tolist()]
    trainer = Recorded(
        case,
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(max_steps=case["steps"], learning_rate=case["rate"], **OPTIONS),
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer(),
        rollout_func=rollout,
    )
    trainer.train()
    logs = [line for line in trainer.state.log_history if "reward" in line]
    torch.save([{**step, "log": log} for step, log in zip(trainer.answer, logs, strict=True)], answer_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
