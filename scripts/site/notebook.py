"""The notebook as a page: its text, its code, and below each cell what it showed when it was run last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.notebook import NOTEBOOK, read

HEAD = "`{name}` in the repository, with what its cells showed when they were run last ({torch}, {cpu})."


def notebook() -> str:
    """The page, in Markdown with the HTML of tables."""
    data = read()
    made_on = data["metadata"]["made_on"]
    title, *others = data["cells"]
    head = HEAD.format(name=f"docs/{NOTEBOOK.name}", torch=f"torch {made_on['torch']}", cpu=made_on["cpu"])
    return "\n\n".join(["".join(title["source"]), head, *(part for cell in others for part in _cell(cell))]) + "\n"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fenced(source, "python")
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        if "text/html" in data:
            # Wider than a page, it scrolls by itself, by keys too.
            shown = re.sub(r"<style scoped>.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
            yield f'<div class="shown" tabindex="0" role="region" aria-label="what the cell shows">{shown}</div>'
        else:
            yield _fenced("".join(data["text/plain"]), "text")


def _fenced(text: str, language: str) -> str:
    """A block of code, behind a fence longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
