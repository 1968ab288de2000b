"""Forwards of a trace: a server's sampler runs behind the model, and is of the forward before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import moeparity
from moeparity.errors import Where
from moeparity.evidence.maps.forwards import Forward, forwards
from moeparity.evidence.maps.module_map import ValuePlace, load_map
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.numerics.bits import same_bits

VOCABULARY = 11
LOG_PROBS = ValuePlace("", "output", ("0",), op="aten.log_softmax.int", of_requests=True)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(input_ids)


class Served(nn.Module):
    """A model whose logits are those of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids) @ self.model.embed_tokens.weight.T


class Sampler(nn.Module):
    """As vLLM's: a module that is no part of the model, and calls no module."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(-1, dtype=torch.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[RankTrace, list[Forward], list[torch.Tensor]]:
    """Two steps, with what the sampler gave; behind each other log-probabilities are taken outside of all modules."""
    folder = tmp_path_factory.mktemp("served") / "trace"
    model, sampler, sampled = Served(), Sampler(), []
    with torch.inference_mode(), moeparity.capture(folder, save="*"):
        for step in range(2):
            logits = model(torch.arange(step, step + 3))
            sampled.append(sampler(logits))
            (logits + 1).log_softmax(-1, dtype=torch.float32)
    trace = open_trace(folder).ranks[0]
    return trace, forwards(trace, load_map("vllm", Where(folder))), sampled


def test_the_sampler_is_of_the_forward_before_it(
    served: tuple[RankTrace, list[Forward], list[torch.Tensor]],
) -> None:
    trace, ways, sampled = served
    assert [way.ids.tolist() for way in ways] == [[[0, 1, 2]], [[1, 2, 3]]]
    for way, log_probs in zip(ways, sampled, strict=True):
        value = way.value(LOG_PROBS, trace.contents.values)
        assert value is not None
        shown = trace.tensor(value)
        assert shown is not None
        assert same_bits(shown, log_probs)


def test_what_no_module_called_is_of_no_place(served: tuple[RankTrace, list[Forward], list[torch.Tensor]]) -> None:
    """vLLM takes the log-probabilities of prompts so, by the same op."""
    trace, ways, _ = served
    outside = [call for call in trace.contents.calls if call.name == "aten.log_softmax.int" and call.inside is None]
    assert len(outside) == 2
    assert [len(way.ops["", "aten.log_softmax.int"]) for way in ways] == [1, 1]
