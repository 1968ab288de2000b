"""`--html`, `--per-token` and `--with-text` as a user gives them: every command that reports has a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.command import ROOT, inside
from tests.planted.places import random_tokens, write_recipe

LOG = ROOT / "tests" / "logs" / "fixtures" / "moeparity" / "log.jsonl"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    tokens = {"input_ids": random_tokens(4, 6)}
    return write_recipe(folder, qwen3_moe, tokens, {}, {"set": {"layers[*].moe.gate:output": "fp32"}})


def headings(page: Path) -> list[str]:
    html = page.read_text("utf-8")
    assert html.startswith("<!doctype html>")
    return re.findall(r"<h2[^>]*>(.*?)</h2>", html)


def test_bisect_writes_page_and_tokens_beside_the_json(recipe: Path, tmp_path: Path) -> None:
    page, tokens, json = (tmp_path / name for name in ("r.html", "r.safetensors", "r.json"))
    done = inside("bisect", recipe, "--html", page, "--per-token", tokens, "--json", json)
    assert done.returncode in {0, 1, 3}, done.stderr
    assert headings(page)[:4] == [
        "The answer",
        "What did each node run?",
        "Is the record reproduced?",
        "Who makes the divergence?",
    ]
    assert load_file(tokens)["k3"].shape == (4, 6)
    assert '"provenance"' in json.read_text("utf-8")


@pytest.mark.parametrize(
    "command",
    [
        ("flips", "RECIPE"),
        ("sweep", "RECIPE", "--over", "micro_batch=2,4"),
        ("variance", "RECIPE", "--batches", "1,2"),
        ("check", "RECIPE"),
        ("metrics", str(LOG)),
        ("flips", "RECIPE", "--mine", "PROMPTS", "--calibrate", "2", "--draws", "2"),
    ],
    ids=lambda command: "mine" if "--mine" in command else command[0],
)
def test_every_report_has_a_page(command: tuple[str, ...], recipe: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input_ids": [5, 6, 7, 8]}\n' * 3, "utf-8")
    files = {"RECIPE": str(recipe), "PROMPTS": str(prompts)}
    arguments = [files.get(word, word) for word in command]
    done = inside(*arguments, "--html", page)
    assert done.returncode in {0, 1, 3}, done.stderr
    assert headings(page)[0] == "The answer"
    assert ("Where routes flip" in headings(page)) == (command == ("flips", "RECIPE"))
    html = page.read_text("utf-8")
    assert f"moeparity {'flips --mine' if '--mine' in command else command[0]}</span>" in html
    first = done.stdout.split("\n", 1)[0].split()[0]
    assert f">{first}<" in html


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--with-text",), "--with-text is for --html and --per-token"),
        (("--with-text", "--html", "x.html"), "names no tokenizer"),
        (("--per-token", "-"), "cannot go to standard output"),
        (("--dry-run", "--html", "x.html"), "--dry-run makes no report"),
        (("--html", "x.html", "--json", "x.html"), "--json and --html are both"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_run(
    options: tuple[str, ...], message: str, recipe: Path, tmp_path: Path
) -> None:
    done = inside("bisect", recipe, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
