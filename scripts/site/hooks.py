"""Hooks of mkdocs: pages that lie elsewhere or come from the code, and links out of the file names in a text.

In `docs/` a page is named as a file, `docs/flips.md`, which a reader of the repository finds; on the site the same
words are a link. A name of a page that is not there is left as it is: tests/test_docs.py refuses it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.pages.page import ROOT
from scripts.site.notebook import notebook
from scripts.site.reference import PAGES

AT_THE_TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository's root that are pages too, and where on the site."""
MADE = {"docs/notebook.ipynb": "notebook.md"}
"""Files that a page is made of, by their names in a text."""
NAMED = re.compile(r"(?<!\[)`((?:docs/)?[\w./-]+\.(?:md|ipynb))`(?!\])")
CODE = re.compile(r"`[^`]+`")
FENCE = re.compile(r"^( *)(```+|~~~+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of `docs/`, those of the root, the reference and the notebook."""
    for source, place in AT_THE_TOP.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    for place, text in PAGES.items():
        files.append(File.generated(config, f"reference/{place}.md", content=text()))
    files.append(File.generated(config, MADE["docs/notebook.ipynb"], content=notebook()))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, config: MkDocsConfig) -> str:
    """The text with links in place of the names of pages, outside of code blocks."""
    there = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        name = match[1]
        place = (
            AT_THE_TOP.get(name) or MADE.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else "")
        )
        if not place or place == there or files.get_file_from_path(place) is None:
            return match[0]
        return f"[{match[0]}]({posixpath.relpath(place, posixpath.dirname(there) or '.')})"

    return "\n".join(line if fenced else NAMED.sub(link, _row(line)) for line, fenced in _lines(markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme's search with a name, for those who do not see it."""
    return re.sub(r'(<div class="md-search"[^>]*role="dialog")>', r'\1 aria-label="Search">', output)


def _row(line: str) -> str:
    """A table's row with `|` in code as it is to be read: GitHub wants it escaped there, Python's Markdown does not."""
    return CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fenced block."""
    fence = ""
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        yield line, bool(fence or mark)
        if mark and not fence:
            fence = mark[2]
        elif mark and line.strip() == fence:
            fence = ""
