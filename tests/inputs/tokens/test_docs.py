"""The examples of docs/tokens.md are what the readers take."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from moeparity.inputs.tokens import read_tokens
from moeparity.plan.spec.recipe_schema import Tokens

TEXT = (Path(__file__).parents[3] / "docs" / "tokens.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_lines_are_read(tmp_path: Path) -> None:
    (lines,) = blocks("jsonl")
    (tmp_path / "rollout.jsonl").write_text(lines, "utf-8")
    tokens = read_tokens(tmp_path / "rollout.jsonl", tokenizer="bytes")
    assert tokens.label_names == ("maths", "text")
    assert tokens.loss_mask.sum(1).tolist() == [8, 2]
    assert tokens.routed_experts is not None
    assert tokens.routed_experts.shape == (2, 9, 2, 2)


def test_the_recipes_parts_are_valid() -> None:
    specs = [Tokens.model_validate(yaml.safe_load(block)["tokens"]) for block in blocks("yaml")]
    assert [spec.sampler for spec in specs] == ["candidate", "candidate"]
