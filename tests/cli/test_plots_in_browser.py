"""Pages of `metrics`, `sweep`, `variance` and `mine`: every plot drawn with data, by hand and by keys, silent, safe."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bisection.pages import HOSTILE, chromium
from tests.bisection.test_page_in_browser import PAINTED, Opened, assert_accessible, open_page
from tests.command import inside
from tests.planted.places import random_tokens, write_recipe

NAME = HOSTILE.replace("/", "")
"""What somebody might call a file."""
VARYING = """
def norm(x, *, node):
    wide = x.float()
    scale = (wide.pow(2).mean(-1, keepdim=True) + node.params["norm"]["eps"]).rsqrt()
    return node.weights["norm.weight"] * (wide * scale).to(x.dtype) * (1 + (len(x) > 1))
"""
"""A norm that sees its batch; where nothing varies there is no plot."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as page_browser:
        yield page_browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Path:
    """A recipe, a log over steps with one sequence far off, and prompts; their names are hostile."""
    folder = tmp_path_factory.mktemp("plots")
    write_recipe(
        folder, qwen3_moe, {"input_ids": random_tokens(4, 6)}, {}, {"set": {"layers[*].moe.gate:output": "fp32"}}
    )
    (folder / "recipe.yaml").rename(folder / f"{NAME}.yaml")
    (folder / "varying.py").write_text(VARYING, "utf-8")
    candidate = {"impl": [{"nodes": ["layers[*].moe.norm"], "call": "varying:norm"}]}
    write_recipe(folder, qwen3_moe, {"input_ids": random_tokens(4, 6)}, {}, candidate)
    (folder / "recipe.yaml").rename(folder / f"varying {NAME}.yaml")
    draw = random.Random(4)  # noqa: S311
    with (folder / f"{NAME}.jsonl").open("w", encoding="utf-8") as file:
        for step, row in [(step, row) for step in range(9) for row in range(3)]:
            rollout = [-draw.expovariate(1) for _ in range(4 + 9 * row)]
            far = 1.5 if (step, row) == (5, 1) else 0.02
            trainer = [-abs(value + draw.gauss(0, far)) for value in rollout]
            whole = {"id": f"{step}-{row}{HOSTILE}", "step": step, "input_ids": [7] * len(rollout)}
            file.write(json.dumps({**whole, "logprobs": rollout, "trainer_logprobs": trainer}) + "\n")
    (folder / "prompts.jsonl").write_text('{"input_ids": [5, 6, 7, 8]}\n{"input_ids": [9, 9, 1]}\n', "utf-8")
    return folder


COMMANDS = {
    "metrics": (
        ("LOG", "--gate", "k3<1e-2"),
        {"sequences": 27, "positions": 2, "steps-k3": 9, "steps-mean_abs_delta": 9},
    ),
    "sweep": (("RECIPE", "--over", "candidate.profile=hf-eager,vllm"), {"swept": 2, "flips": 2}),
    "variance": (("VARYING", "--batches", "1,2,4", "--allow-code"), {"group1": 4}),
    "flips --mine": (("RECIPE", "--mine", "PROMPTS", "--calibrate", "2", "--draws", "2"), {"prompts": 2, "tokens": 7}),
}
"""Arguments by command, and its plots with how many points each has."""


@pytest.fixture(scope="module", params=COMMANDS)
def opened(request: pytest.FixtureRequest, folder: Path, browser: Any) -> Iterator[tuple[str, Opened, Path]]:
    files = {
        "LOG": f"{NAME}.jsonl",
        "RECIPE": f"{NAME}.yaml",
        "VARYING": f"varying {NAME}.yaml",
        "PROMPTS": "prompts.jsonl",
    }
    command = request.param
    arguments = [str(folder / files[word]) if word in files else word for word in COMMANDS[command][0]]
    path = folder / f"{command}.html"
    done = inside(command.split()[0], *arguments, "--html", path)
    assert done.returncode in {0, 1, 3}, done.stderr
    page = open_page(browser, path, color_scheme="light")
    yield command, page, path
    page.tab.close()


def test_it_opens_without_a_word_and_without_a_network(opened: tuple[str, Opened, Path]) -> None:
    _, page, path = opened
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith("data:")] == [path.as_uri()]


def test_every_plot_is_drawn_with_data(opened: tuple[str, Opened, Path]) -> None:
    command, page, _ = opened
    drawn = page.tab.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.plot')].map(p => [p.id, p.dataset.drawn]))"
    )
    assert drawn == {f"plot-series-{name}": str(points) for name, points in COMMANDS[command][1].items()}
    for name in COMMANDS[command][1]:
        assert page.tab.evaluate(PAINTED, f"series-{name}") > 3, name


def test_hand_and_keys_tell_every_point(opened: tuple[str, Opened, Path]) -> None:
    command, page, _ = opened
    for name, points in COMMANDS[command][1].items():
        page.tab.locator(f"#plot-series-{name} .u-over").hover()
        assert page.text("#hover").strip()
        page.tab.focus(f"#plot-series-{name}")
        page.tab.keyboard.press("Home")
        points_said = [page.text(f"#say-series-{name}")]
        for _ in range(points):
            page.tab.keyboard.press("ArrowRight")
            points_said.append(page.text(f"#say-series-{name}"))
        assert len(set(points_said)) == points, "each says another thing, and the last is the end"
        assert points_said[-1] == points_said[-2]
        page.tab.keyboard.press("Home")
        assert page.text(f"#say-series-{name}") == points_said[0]
        page.tab.mouse.move(2, 2)


def test_it_is_readable_by_everybody(opened: tuple[str, Opened, Path]) -> None:
    _, page, _ = opened
    for width in (380, 1440):
        page.tab.set_viewport_size({"width": width, "height": 900})
        page.tab.wait_for_timeout(50)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    for colours in ("dark", "light"):
        page.tab.emulate_media(color_scheme=colours)
        assert_accessible(page)


def test_names_are_inert(opened: tuple[str, Opened, Path]) -> None:
    _, page, _ = opened
    assert "owned" not in page.tab.title().split("<")[0]
    assert page.tab.locator("img").count() == 0
    assert "\u202e" not in page.text("body")
    assert "<script>" in page.text("body")


def test_a_kept_sweep_is_drawn_as_when_it_ran(folder: Path, tmp_path: Path) -> None:
    recipe, run_folder, page = folder / f"{NAME}.yaml", tmp_path / "run", tmp_path / "page.html"
    first = inside("sweep", recipe, "--over", "micro_batch=1,4", "--run", run_folder, "--html", tmp_path / "first.html")
    assert first.returncode in {0, 1, 3}, first.stderr
    again = inside("runs", "show", run_folder, "--html", page)
    assert again.returncode == first.returncode, again.stderr
    parts = [file.read_text("utf-8").split('id="data">')[1] for file in (tmp_path / "first.html", page)]
    assert "series-swept" in parts[0]
    assert parts[0].split("</script>")[0] == parts[1].split("</script>")[0]
