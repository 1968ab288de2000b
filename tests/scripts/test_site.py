"""The site builds without a warning, needs no network, and loses no page; every link and anchor leads somewhere."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from moeparity.cli.commands import app
from moeparity.ops.registry import OPS
from moeparity.plan.editor import json_schema
from tests.command import ROOT

pytest.importorskip("mkdocs", reason="pip install 'moeparity[docs]'")

LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\ssrc=\"?([^\"\s>]+)|<link\b[^>]*?\shref=\"?([^\"\s>]+)")
FROM_A_NETWORK = re.compile(r"(?:url\(|@import )\s*[\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_page_of_the_repository_is_on_the_site(site: Path, pages: dict[Path, str]) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site) for path in pages}
    assert len(sources) > 40
    assert sources <= built
    added = {
        "index",
        "contributing",
        "changelog",
        "notebook",
        *(f"reference/{name}" for name in ("commands", "files", "ops", "python")),
    }
    assert {Path(f"{name}.html") for name in added} == built - sources


def test_links_and_anchors_lead_somewhere(pages: dict[Path, str]) -> None:
    ids = {path: {"", *map(html.unescape, re.findall(r"\sid=\"?([^\"\s>]+)", text))} for path, text in pages.items()}
    links = 0
    for path, text in pages.items():
        for link in set(re.findall(r"<a\b[^>]*?\shref=\"?([^\"\s>]+)", text)):
            place, anchor = urldefrag(unquote(html.unescape(link)))
            if re.match(r"\w+:", place):
                continue
            links += 1
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link}"
            assert target not in ids or anchor in ids[target], f"{path.name}: {link}"
    assert links > 1000


def test_nothing_is_loaded_from_a_network(site: Path, pages: dict[Path, str]) -> None:
    for path, text in pages.items():
        loaded = [quoted or unquoted for quoted, unquoted in LOADED.findall(text)]
        assert loaded
        assert [place for place in loaded if re.match(r"(?:\w+:)?//", place)] == [], path
        assert not FROM_A_NETWORK.search(text), path
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert len(styles) > 2
    assert not any(FROM_A_NETWORK.search(text) for text in styles)


def test_names_of_pages_are_links(site: Path, pages: dict[Path, str]) -> None:
    assert '<a href="first-screen.html"><code>docs/first-screen.md</code></a>' in pages[site / "index.html"]
    assert '<a href="../coverage.html"><code>docs/coverage.md</code></a>' in pages[site / "guides" / "index.html"]
    # Not in a block of code.
    assert not any(
        re.search(r"<pre>(?:(?!</pre>).)*<a href=\"[^\"]*\.html", text, re.DOTALL) for text in pages.values()
    )


def test_the_reference_has_all_that_the_code_has(site: Path, pages: dict[Path, str]) -> None:
    reference = site / "reference"
    commands, files, ops = (html.unescape(pages[reference / f"{name}.html"]) for name in ("commands", "files", "ops"))
    for command in app.registered_commands:
        assert f"moeparity {command.name or command.callback.__name__}" in commands
    assert "--git-bisect" in commands
    for kind in ("recipe", "profile", "log", "kernel", "fault", "graph"):
        for key in json_schema(kind)["properties"]:
            assert f"<code>{key}</code>" in files, (kind, key)
    for op in OPS.values():
        for attribute in op.attributes:
            assert f"<code>{attribute.name}</code>" in ops, (op.name, attribute.name)
    assert 'id="moeparity.bisect"' in pages[reference / "python.html"]
