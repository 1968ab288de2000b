"""Each token by itself: what is summed of them is what the report says, and no prompt leaves unasked."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from moeparity.bisection.flips.census import MAP_BITS
from moeparity.bisection.per_token import show as module
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.per_token.show import kept_sequences, powers, token_data
from moeparity.bisection.per_token.token_file import SCHEMA, recipe_tokenizer, spelt, write_per_token
from moeparity.bisection.report import Report
from moeparity.errors import TokensError
from moeparity.inputs.tokens.tokenizer import Bytes
from moeparity.output.figures import Plot
from tests.bisection.pages import SEQUENCES, TOKENS
from tests.planted.places import random_tokens, write_recipe


@pytest.fixture
def tokens(drawn_report: Report) -> PerToken:
    assert drawn_report.per_token is not None
    return drawn_report.per_token


def test_tokens_add_up_to_the_report(drawn_report: Report, tokens: PerToken) -> None:
    count = tokens.scored.sum()
    assert count == drawn_report.run.scored_tokens
    metrics = drawn_report.metrics
    for name, figure in (("k3", metrics.k3), ("kl", metrics.kl)):
        assert getattr(tokens, name)[tokens.scored].astype(np.float64).sum() / count == pytest.approx(figure, rel=1e-6)
    assert not tokens.k3[~tokens.scored].any()
    assert drawn_report.flips is not None
    flips = (tokens.flips & MAP_BITS["set_differs"]) != 0
    assert flips.sum((1, 2)).tolist() == [layer.set_flips for layer in drawn_report.flips.layers]
    assert flips.any(0).sum() == drawn_report.flips.tokens_any_layer


def test_every_flip_has_its_experts_and_its_cut(tokens: PerToken) -> None:
    flips = np.argwhere(tokens.flips & MAP_BITS["set_differs"])
    assert np.array_equal(flips, tokens.flipped)
    assert len(flips) > 0
    for ours, theirs in tokens.experts:
        assert set(ours) != set(theirs)
    at = tuple(tokens.flipped.T)
    # What `perturbation` says of a flip at a cut of the same experts.
    assert (tokens.margin[at] <= 2 * tokens.perturbation[at]).all()


def test_the_file_has_the_parts_across_updates_where_weights_change(
    drawn_report: Report, tokens: PerToken, tmp_path: Path
) -> None:
    parts = np.arange(4 * tokens.k3.size, dtype=np.float64).reshape(4, *tokens.k3.shape)
    path = tmp_path / "tokens.safetensors"
    write_per_token(replace(drawn_report, per_token=replace(tokens, update_parts=parts)), path)
    assert load_file(path)["update_parts"].tobytes() == parts.tobytes()


def test_the_file_holds_all_but_the_prompts(drawn_report: Report, tokens: PerToken, tmp_path: Path) -> None:
    path = tmp_path / "tokens.safetensors"
    write_per_token(drawn_report, path)
    arrays = load_file(path)
    assert arrays.keys() == {field.name for field in fields(tokens)} - {"input_ids", "pieces", "update_parts"}
    for name, array in arrays.items():
        assert array.tobytes() == getattr(tokens, name).tobytes(), name
    with safe_open(path, "np") as file:
        assert file.metadata()["schema"] == SCHEMA
        assert json.loads(file.metadata()["bits"]) == MAP_BITS


def test_with_text_both_have_it(drawn_report: Report, tmp_path: Path) -> None:
    report = spelt(drawn_report, Bytes())
    path = tmp_path / "tokens.safetensors"
    write_per_token(report, path)
    assert "input_ids" in load_file(path)
    (group,) = module.show(report)
    (plot,) = (block for block in group.blocks if isinstance(block, Plot))
    assert (plot.name, plot.data is None) == ("tokens", False)
    pieces = (plot.data or {})["pieces"]
    assert (len(pieces), len(pieces[0])) == (SEQUENCES, TOKENS)


def test_text_without_a_tokenizer_is_refused_before_the_run(tmp_path: Path, qwen3_moe: Path) -> None:
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(2, 4)}, {}, {})
    with pytest.raises(TokensError, match="names no tokenizer"):
        recipe_tokenizer(recipe)


def test_a_page_of_many_tokens_keeps_those_that_matter_most(tokens: PerToken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS", 5 * TOKENS * len(tokens.layers))
    sequences = kept_sequences(tokens)
    assert len(sequences) == 5
    assert sequences.tolist() == sorted(sequences)
    sums = tokens.k3.sum(1)
    assert sums[sequences].min() >= np.delete(sums, sequences).max()
    data = token_data(tokens, sequences)
    assert data["map"].shape == (len(tokens.layers), 5, TOKENS)
    assert len(data["flipped"]) == np.isin(tokens.flipped[:, 1], sequences).sum()


def test_a_sequence_that_is_not_finite_is_kept_first(tokens: PerToken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS", TOKENS)
    k3 = tokens.k3.copy()
    k3[7, 3] = np.nan
    assert kept_sequences(replace(tokens, k3=k3)).tolist() == [7]


def test_powers_are_those_of_the_margins() -> None:
    values = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 1023.0, np.nan, np.inf], dtype=np.float32)
    assert powers(values).tolist() == [0, 0, 1, 1, 2, 10, 255, 255]
