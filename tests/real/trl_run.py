"""A real GRPO training of TRL 1.16.0 on a CPU: what it computed, as `python trl_run.py CASE ANSWER`.

CASE holds `folder`, a checkpoint whose tokens are bytes, `prompts`, `config` (arguments of GRPOConfig), `hook`, whether
this project's hook is imported, `records`, whether TRL is handed the sampler's log-probabilities, and `fault`, what
goes wrong while completions are generated: None or one of `FAULTS`.
ANSWER has
    `batches`: of each generation what `_generate_and_score_completions` returns, tensor by tensor;
    `sampled`: of each generation the log-probabilities [B, C] fp32 of what was drawn, after the temperature;
    `losses`, micro-batch after micro-batch; `weights`: the model's at each generation, and at the end.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from trl import GRPOConfig, GRPOTrainer

PAD, END = 0, 10
"""Bytes that pad, and that end a completion: a line."""


class Recorded(GRPOTrainer):
    """The trainer, with what it computes written down as it goes by."""

    def __init__(self, **options: Any) -> None:
        self.answer: dict[str, list[Any]] = {"batches": [], "sampled": [], "losses": [], "weights": []}
        super().__init__(**options)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.keep_weights()
        outputs = super()._generate_and_score_completions(inputs)
        self.answer["batches"].append({k: v.clone() for k, v in outputs.items() if isinstance(v, torch.Tensor)})
        return outputs

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        self.answer["losses"].append(loss.detach().clone())
        return loss

    def keep_weights(self) -> None:
        """Write down the model's weights as they are now."""
        self.answer["weights"].append({name: x.detach().clone() for name, x in self.model.state_dict().items()})


def record_sampler(trainer: Recorded) -> None:
    """Write down the log-probabilities of what the model's `generate` draws; what it returns stays the same."""
    generate = trainer.model.generate

    def recorded(input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        outputs = generate(input_ids, **options, return_dict_in_generate=True, output_scores=True)
        drawn = outputs.sequences[:, input_ids.shape[1] :]
        scores = torch.stack(outputs.scores, 1).float().log_softmax(-1)
        trainer.answer["sampled"].append(scores.gather(2, drawn[:, :, None])[:, :, 0])
        sequences: torch.Tensor = outputs.sequences
        return sequences

    trainer.model.generate = recorded


def rollout(prompts: list[str], trainer: Recorded) -> dict[str, Any]:
    """TRL's own generation, in the form in which TRL takes a sampler's log-probabilities."""
    ids = trainer.processing_class(text=prompts)["input_ids"]
    completions, _ = trainer._generate_single_turn(ids, None, {}, trainer.num_generations)
    rows = zip(trainer.answer["sampled"][-1], completions, strict=True)
    return {
        "prompt_ids": ids,
        "completion_ids": completions,
        "logprobs": [row[: len(tokens)].tolist() for row, tokens in rows],
    }


def attend_to_pads(trainer: Recorded) -> None:
    """Generate without an attention mask: pads on the left are read like tokens."""
    generate = trainer.model.generate
    trainer.model.generate = lambda input_ids, attention_mask, **options: generate(
        input_ids, attention_mask=torch.ones_like(attention_mask), **options
    )


def keep_layer(trainer: Recorded) -> None:
    """Generate with one layer's weights as they were before the first step."""
    generate, layer = trainer.model.generate, trainer.model.model.layers[1]
    stale = {name: weight.detach().clone() for name, weight in layer.named_parameters()}

    def generated(*arguments: Any, **options: Any) -> Any:
        current = {name: weight.detach().clone() for name, weight in layer.named_parameters()}
        layer.load_state_dict(stale)
        outputs = generate(*arguments, **options)
        layer.load_state_dict(current)
        return outputs

    trainer.model.generate = generated


FAULTS: dict[str, Callable[[Recorded], None]] = {"pads": attend_to_pads, "layer": keep_layer}


def tokenizer() -> PreTrainedTokenizerFast:
    """Of which a token's number is its byte."""
    characters = bytes_to_unicode()
    words = Tokenizer(models.BPE(vocab={character: byte for byte, character in characters.items()}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    pad, end = characters[PAD], characters[END]
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=pad, eos_token=end, padding_side="left")


def reward(completions: list[str], **_: Any) -> list[float]:
    """The length of each completion."""
    return [float(len(completion)) for completion in completions]


def main(case_file: str, answer_file: str) -> None:
    torch.set_num_threads(1)
    case = torch.load(case_file)
    if case["hook"]:
        importlib.import_module("moeparity.hooks.trl")
    arguments = GRPOConfig(
        output_dir="out", use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, seed=1, **case["config"]
    )
    trainer = Recorded(
        model=case["folder"],
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": case["prompts"]}),
        processing_class=tokenizer(),
        rollout_func=rollout if case["records"] else None,
    )
    record_sampler(trainer)
    if case["fault"] is not None:
        FAULTS[case["fault"]](trainer)
    trainer.train()
    trainer.keep_weights()
    torch.save(trainer.answer, answer_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
