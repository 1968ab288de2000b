"""The models in whose programs faults are planted: four architectures of transformers, two layers each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.checkpoint_factory import make_random
from tests.doctor.programs import QUICKSTART, tokens, two_layers
from tests.small_models import SMALL

VOCABULARY = 256
"""Below which tokens are drawn; the vocabulary of the shipped checkpoint."""
_TEXTS = 32, 64
"""The texts for the trained model, and the tokens of each."""
_BEGUN = 8
"""So many tokens of a text begin one that the model draws."""
_HEAD_GAIN = 2.0
"""Random weights give logits of a spread of 1; so much more of it, and likely tokens differ from unlikely ones as they
do in a trained model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model. small: the name of its fields among the tests' small models; "" for the shipped checkpoint. is_softmax:
    whether its routers take a softmax. top_k: the experts of a token. dense: whether its first layer has no experts.
    """

    name: str
    small: str = ""
    top_k: int = 4
    is_softmax: bool = True
    dense: bool = False

    def checkpoint(self, folder: Path) -> Path:
        """Its checkpoint in a folder, where it is not there."""
        if not folder.exists():
            if self.small:
                make_random({**SMALL[self.small], "num_hidden_layers": 2, "vocab_size": VOCABULARY}, folder)
                _widen_head(folder)
            else:
                two_layers(folder)
        return folder

    def ids(self, draw: Random, sequences: int, length: int) -> Tensor:
        """Tokens int64 [sequences, length]: texts for the trained model, and what it draws itself where these are too
        few or too short; any for one of random weights.
        """
        if not self.small:
            every = tokens(*_TEXTS)
            if sequences > len(every) or length > every.shape[1]:
                return _written(every, sequences, length, draw.randrange(2**31))
            return every[torch.tensor(sorted(draw.sample(range(len(every)), sequences))), :length]
        generator = torch.Generator().manual_seed(draw.randrange(2**31))
        return torch.randint(0, VOCABULARY, (sequences, length), generator=generator)


ARCHITECTURES = (
    Architecture(name="qwen3_moe", top_k=6),
    Architecture(name="olmoe", small="olmoe"),
    Architecture(name="qwen2_moe", small="qwen2_moe_plain"),
    Architecture(name="deepseek_v3", small="deepseek_v3", is_softmax=False, dense=True),
)
"""The first is trained, the others have random weights."""


def _written(texts: Tensor, sequences: int, length: int, seed: int) -> Tensor:
    """Texts int64 [sequences, length] that the trained model draws behind the first tokens of other texts."""
    model: Any = AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.bfloat16)
    model.eval()
    begun = texts[torch.arange(sequences) % len(texts), :_BEGUN]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        drawn: Tensor = model.generate(
            begun, do_sample=True, min_new_tokens=length - _BEGUN, max_new_tokens=length - _BEGUN, pad_token_id=0
        )
    return drawn


def _widen_head(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    weights["lm_head.weight"] *= _HEAD_GAIN
    save_file(weights, file, {"format": "pt"})
