"""Sequences with other tokens in them, values beside other tokens, and what a truncation keeps, by hand."""

from __future__ import annotations

import torch

from moeparity.doctor.readings import Cut, Rows
from moeparity.doctor.tokens import kept_mass, prompts_of, rewritten, shifted
from moeparity.inputs.tokens.tokenset import TokenSet


def grid() -> TokenSet:
    """A sequence of five tokens, two of them prompt, and one of three with padding on its left."""
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], dtype=torch.bool)
    scored = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    ids = torch.tensor([[10, 11, 12, 13, 14], [0, 0, 20, 21, 22]])
    return TokenSet(input_ids=ids, loss_mask=scored, attention_mask=real)


def sources(reading: Rows) -> list[list[int]]:
    prompts = prompts_of(grid())
    lengths = [prompts.grid.tokens(row) for row in range(2)]
    return [reading.sources(length, prompt) for length, prompt in zip(lengths, prompts.grid.prompts, strict=True)]


def test_a_prompt_ends_at_the_first_scored_token() -> None:
    prompts = prompts_of(grid())
    assert prompts.grid.spans == ((0, 5), (2, 5))
    assert prompts.grid.prompts == (2, 1)
    assert (prompts.length, prompts.shortest) == (5, 1)


def test_tokens_are_left_off_and_given_twice() -> None:
    assert sources(Rows(dropped=1)) == [[1, 2, 3, 4], [1, 2]]
    assert sources(Rows(dropped="prompt")) == [[2, 3, 4], [1, 2]]
    assert sources(Rows(repeated="first")) == [[0, 0, 1, 2, 3, 4], [0, 0, 1, 2]]
    assert sources(Rows(repeated="prompt")) == [[0, 1, 1, 2, 3, 4], [0, 0, 1, 2]]


def test_what_lost_all_before_it_is_not_scored() -> None:
    of = rewritten(grid(), sources(Rows(dropped="prompt")), prompts_of(grid()))
    assert of.tokens.input_ids.tolist() == [[12, 13, 14], [21, 22, 0]]
    assert of.tokens.attention_mask.tolist() == [[True, True, True], [True, True, False]]
    assert of.tokens.loss_mask.tolist() == [[False, True, True], [False, True, False]]
    assert of.scored.tolist() == [False, True, True, False, True]


def test_a_token_given_twice_moves_those_behind_it() -> None:
    of = rewritten(grid(), sources(Rows(repeated="prompt")), prompts_of(grid()))
    assert of.tokens.input_ids.tolist() == [[10, 11, 11, 12, 13, 14], [20, 20, 21, 22, 0, 0]]
    assert of.tokens.loss_mask.nonzero().tolist() == [[0, 3], [0, 4], [0, 5], [1, 2], [1, 3]]
    assert of.scored.all()


def test_values_move_within_their_sequence() -> None:
    values, sequence = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([0, 0, 0, 1, 1])
    assert shifted(values, 1, sequence).tolist() == [2.0, 3.0, 3.0, 5.0, 5.0]
    assert shifted(values, -2, sequence).tolist() == [1.0, 2.0, 1.0, 4.0, 5.0]


def test_truncations_keep_the_likeliest_tokens() -> None:
    logprobs = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    cuts = {by: Cut(by=by, value=value) for by, value in (("top_k", 2), ("top_p", 0.75), ("min_p", 0.4))}
    masses = kept_mass(logprobs, logprobs[:, 0], cuts)
    assert {name: round(float(mass.exp()), 9) for name, mass in masses.items()} == {
        "top_k": 0.8,
        "top_p": 0.8,
        "min_p": 0.8,
    }
    sampled = kept_mass(logprobs, logprobs[:, 2], cuts)
    assert abs(float(sampled["top_k"].exp()) - 0.95) < 1e-12
