"""Pages of the site in a browser, from a folder: silent, readable by everybody, and no link or picture that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bisection.pages import chromium
from tests.bisection.test_page_in_browser import Opened, assert_accessible

PAGES = ("index", "guides/noise", "gallery", "notebook", "reference/commands", "html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as page_browser:
        yield page_browser


@pytest.fixture(scope="module", params=PAGES)
def opened(request: pytest.FixtureRequest, browser: Any, site: Path) -> Iterator[Opened]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = Opened(tab)
    tab.on("console", lambda message: page.messages.append(message.text))
    tab.on("pageerror", lambda error: page.messages.append(str(error)))
    tab.on("request", lambda sent: page.requests.append(sent.url))
    tab.on("requestfailed", lambda sent: page.messages.append(f"failed: {sent.url}"))
    tab.goto((site / f"{request.param}.html").as_uri(), wait_until="load")
    yield page
    tab.close()


def test_it_opens_without_a_word_and_without_a_network(opened: Opened) -> None:
    assert opened.messages == []
    assert opened.requests
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_link_and_picture_is_there(opened: Opened) -> None:
    links = opened.tab.evaluate("[...document.links].map(link => link.href)")
    files = {Path(link.removeprefix("file://").partition("#")[0]) for link in links if link.startswith("file:")}
    assert len(files) > 20
    assert [file for file in files if not file.exists()] == []
    broken = opened.tab.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    assert broken == []


def test_it_is_readable_by_everybody(opened: Opened) -> None:
    # Last: what axe loads by itself from a folder, it says in the console.
    for width in (1280, 380):
        opened.tab.set_viewport_size({"width": width, "height": 900})
        opened.tab.wait_for_timeout(50)
        assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert_accessible(opened)


def test_the_notebook_shows_what_its_cells_showed(browser: Any, site: Path) -> None:
    tab = browser.new_page()
    tab.goto((site / "notebook.html").as_uri())
    assert tab.locator("div.shown").count() >= 3
    assert "FAIL" in tab.locator("div.shown").first.inner_text()
    tab.locator("div.shown summary").first.click()
    assert "On request" in tab.locator("div.shown details pre").first.inner_text()
    tab.close()
