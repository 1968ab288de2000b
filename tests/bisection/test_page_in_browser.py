"""The page in a browser: drawn with data, reached by hand and by keys, silent, safe, and readable by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeparity import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.sections import document
from moeparity.output.html.page import html
from tests.bisection.pages import SEQUENCES, TOKENS, chromium, hostile
from tests.opened import opened as opened_model
from tests.planted.places import random_tokens, write_recipe

PAINTED = """name => {
    const canvas = document.querySelector(`#plot-${name} canvas`);
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3]) colours.add(data[i] * 65536 + data[i + 1] * 256 + data[i + 2]);
    }
    return colours.size;
}"""


SERIES = ("series-growth", "series-scatter", "series-differences")


@dataclass
class Opened:
    """A page in a tab, with what it said and asked for."""

    tab: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).inner_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as page_browser:
        yield page_browser


def open_page(browser: Any, file: Path, **options: Any) -> Opened:
    tab = browser.new_page(viewport={"width": options.pop("width", 1280), "height": 900}, **options)
    opened = Opened(tab)
    tab.on("console", lambda message: opened.messages.append(message.text))
    tab.on("pageerror", lambda error: opened.messages.append(str(error)))
    tab.on("dialog", lambda dialog: opened.messages.append(dialog.message))
    tab.on("request", lambda request: opened.requests.append(request.url))
    tab.goto(file.as_uri())
    assert tab.evaluate("document.documentElement.dataset.ready") is not None, opened.messages
    return opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, drawn_report: Report) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html(document(drawn_report)), "utf-8")
    return path


@pytest.fixture(scope="module")
def opened(browser: Any, file: Path) -> Opened:
    """The page as it is, for tests that leave it usable."""
    return open_page(browser, file, color_scheme="light")


def test_how_to_read_a_plot_is_said_once(browser: Any, file: Path) -> None:
    lines = open_page(browser, file).tab.locator(".say").all_text_contents()
    assert [line for line in lines if line] == ["Point at it, or use the arrow keys."]
    assert len(lines) > 1


def test_it_opens_without_a_word_and_without_a_network(opened: Opened, file: Path) -> None:
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [file.as_uri()]


def test_every_plot_is_drawn_with_data(opened: Opened, drawn_report: Report) -> None:
    drawn = {
        name: opened.tab.evaluate(f"document.getElementById('plot-{name}').dataset.drawn")
        for name in (*SERIES, "flipmap", "tokens")
    }
    scored = drawn_report.run.scored_tokens
    assert drawn == {
        "series-growth": str(len(drawn_report.growth)),
        "series-scatter": str(scored),
        "series-differences": drawn["series-differences"],
        "flipmap": str(SEQUENCES * TOKENS),
        "tokens": str(TOKENS),
    }
    assert int(drawn["series-differences"]) > 1
    for name in drawn:
        assert opened.tab.evaluate(PAINTED, name) > 3, name
    assert drawn_report.attribution is not None
    shares = [row for row in drawn_report.attribution.shares.rows if row.role != "had no effect"]
    assert opened.tab.locator("#blame .bars rect.bar").count() == len(shares) + 1
    assert drawn_report.graph is not None
    nodes = sum(len(segment.nodes) for segment in drawn_report.graph.segments)
    assert opened.tab.locator(".lanes li").count() == opened.tab.locator(".edges .point").count() == nodes
    assert opened.tab.locator("#text span").count() == TOKENS


def test_pointing_at_a_flip_tells_its_experts_and_margins(opened: Opened, drawn_report: Report) -> None:
    tokens = drawn_report.per_token
    assert tokens is not None
    (layer, sequence, position), (ours, theirs) = tokens.flipped[0], tokens.experts[0]
    box = opened.tab.locator("#plot-flipmap canvas").bounding_box()
    row = opened.tab.evaluate("Math.max(4, Math.min(26, Math.floor(420 / %d)))" % len(tokens.layers))  # noqa: UP031
    token = sequence * TOKENS + position
    x = 34 + (token + 0.5) / (SEQUENCES * TOKENS) * (box["width"] - 34)
    opened.tab.locator("#plot-flipmap canvas").hover(position={"x": x, "y": row * (layer + 0.5)})
    hover_words = opened.text("#hover")
    assert f"layer {tokens.layers[layer]}, sequence {sequence}, position {position}" in hover_words
    assert f"reference {' '.join(map(str, ours))}" in hover_words
    assert f"candidate {' '.join(map(str, theirs))}" in hover_words
    assert "margin" in hover_words
    assert "perturbation" in hover_words
    opened.tab.mouse.move(2, 2)
    assert opened.tab.locator("#hover").is_hidden()


def test_pointing_at_the_other_plots_tells_what_is_there(opened: Opened) -> None:
    for name, word in zip((*SERIES, "tokens"), ("carried", "candidate", "tokens", "position"), strict=True):
        opened.tab.locator(f"#plot-{name} .u-over").hover()
        assert word in opened.text("#hover")
    opened.tab.locator("#text span").nth(5).hover()
    assert "position 5" in opened.text("#hover")


def test_keys_do_what_the_pointer_does(opened: Opened, drawn_report: Report) -> None:
    tab = opened.tab
    for name, first in (
        ("series-growth", "layers[0]"),
        ("series-scatter", "reference"),
        ("series-differences", "nats"),
        ("tokens", "position 0"),
        ("flipmap", "layer 0, sequence 0, position 0"),
    ):
        tab.focus(f"#plot-{name}")
        tab.keyboard.press("Home")
        before = opened.text(f"#say-{name}")
        assert first in before
        tab.keyboard.press("ArrowRight")
        assert opened.text(f"#say-{name}") != before
    tab.keyboard.press("+")
    assert int(tab.evaluate("document.getElementById('plot-flipmap').dataset.drawn")) < SEQUENCES * TOKENS
    assert drawn_report.per_token is not None
    for _ in range(int(drawn_report.per_token.flipped[0, 0])):
        tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Home")
    tab.keyboard.press("Shift+ArrowRight")
    assert "flips" in opened.text("#say-flipmap")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "plot-tokens"
    tab.locator("#tools-flipmap [data-tool=all]").click()
    buttons = tab.locator(".lanes button")
    buttons.first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert buttons.nth(1).get_attribute("aria-expanded") == "true"
    assert tab.locator(".panel:visible").count() == 1


def test_the_node_it_starts_at_is_open_with_both_sides(
    opened: Opened, browser: Any, file: Path, drawn_report: Report
) -> None:
    fresh = open_page(browser, file, color_scheme="dark")
    panel = fresh.text(".panel:visible")
    root = drawn_report.roots[0]
    assert root.node.split(".", 1)[-1] in panel
    choice = root.choices[0]
    for word in (choice.attribute, choice.candidate, choice.reference_evidence, choice.candidate_evidence):
        assert word in panel
    assert fresh.tab.evaluate("getComputedStyle(document.body).backgroundColor") != opened.tab.evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )
    assert_accessible(fresh)
    fresh.tab.close()


def test_colours_can_be_chosen(opened: Opened) -> None:
    button = opened.tab.locator("#theme")
    looks = []
    for _ in range(3):
        button.click()
        looks.append((button.inner_text(), opened.tab.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert [name for name, _ in looks] == ["Light", "Dark", "Auto"]
    assert looks[0][1] == looks[2][1] != looks[1][1]


def test_print_shows_the_choices_that_differ_and_no_controls(opened: Opened, drawn_report: Report) -> None:
    opened.tab.emulate_media(media="print")
    assert opened.tab.locator(".tools:visible, nav:visible, #theme:visible").count() == 0
    assert drawn_report.graph is not None
    differing = [
        node
        for segment in drawn_report.graph.segments
        for node in segment.nodes
        if any(c.differs for c in node.choices)
    ]
    assert opened.tab.locator(".panel.differs:visible").count() == len(differing)
    opened.tab.emulate_media(media="screen")


def test_dark_pages_are_printed_light(browser: Any, file: Path) -> None:
    dark = open_page(browser, file, color_scheme="dark")
    corner = """() => {
        const canvas = document.querySelector('#plot-flipmap canvas');
        return [...canvas.getContext('2d').getImageData(canvas.width - 40, 8, 1, 1).data].slice(0, 3);
    }"""
    colour = dark.tab.evaluate(corner)
    # What a browser says when it prints.
    dark.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = dark.tab.evaluate(corner)
    assert max(colour) < 180 < min(printed), (colour, printed)
    dark.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert dark.tab.evaluate(corner) == colour
    dark.tab.emulate_media(media="print")
    assert dark.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    dark.tab.close()


@pytest.mark.parametrize("width", [380, 1440])
def test_it_fits_narrow_and_wide_windows(opened: Opened, width: int) -> None:
    opened.tab.set_viewport_size({"width": width, "height": 900})
    # Charts follow on a busy machine later.
    fits = "width => document.documentElement.scrollWidth <= width && innerWidth === width"
    opened.tab.wait_for_function(fits, arg=width, timeout=10_000)
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert_accessible(opened)


def test_scripts_in_names_and_prompts_are_inert(browser: Any, tmp_path: Path, drawn_report: Report) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(html(document(hostile(drawn_report))), "utf-8")
    hurt = open_page(browser, path)
    hurt.tab.locator("#text span").nth(3).hover()
    assert "<script>" in hurt.text("#hover")
    assert "owned" not in hurt.tab.title().split("<")[0]
    assert hurt.messages == []
    assert [url for url in hurt.requests if not url.startswith("data:")] == [path.as_uri()]
    assert hurt.tab.locator("img").count() == 0
    assert "\u202e" not in hurt.text("body")
    hurt.tab.close()


def test_a_dense_model_with_padding_and_what_is_not_finite_is_drawn(browser: Any, tmp_path: Path, qwen3: Path) -> None:
    ids, mask = random_tokens(3, 9) % 300, torch.ones(3, 9, dtype=torch.bool)
    mask[1, 6:] = False
    tokens = {"input_ids": ids, "attention_mask": mask, "loss_mask": mask.clone()}
    choice = {"set": {"layers[*].attention.o_proj:output": "fp16"}}
    recipe = write_recipe(tmp_path, qwen3, tokens, {}, choice)
    report = bisect(recipe, device="cpu", opener=opened_model)
    assert report.per_token is not None
    k3 = report.per_token.k3.copy()
    k3[0, 4] = np.nan
    report = replace(report, per_token=replace(report.per_token, k3=k3))
    path = tmp_path / "dense.html"
    path.write_text(html(document(report)), "utf-8")
    dense = open_page(browser, path)
    assert dense.messages == []
    assert dense.tab.locator("#plot-flipmap").count() == 0
    assert "There is no router that both sides run." in dense.text("#flips")
    dense.tab.locator("#text span").nth(4).hover()
    assert "not finite" in dense.text("#hover")
    dense.tab.select_option("#sequence", "1")
    assert dense.tab.locator("#text span").count() == 6, "padding is no token"
    dense.tab.close()


def assert_accessible(opened: Opened) -> None:
    """No violation that axe calls serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(opened.tab).response["violations"]
    serious = [
        (violation["id"], [node["target"] for node in violation["nodes"]][:3])
        for violation in violations
        if violation["impact"] in {"serious", "critical"}
    ]
    assert serious == []
