"""A small report with everything a page draws, and the same with hostile text wherever a text can be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

CHOICES = {
    "set": {
        "layers[*].moe.gate:output": "fp32",
        "layers[*].moe.combine:accumulate": "fp32",
        "layers[*].moe.experts:implementation": "grouped",
    }
}
SEQUENCES, TOKENS = 30, 12

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;\u202e{{7*7}}"
)
"""What somebody might call a recipe, a label or a token."""

_CLOSED = ("status", "metric", "reduce", "method", "role", "kind", "side")
"""Fields with words of our own, which nobody else writes."""


def small_report(folder: Path, checkpoint: Path) -> Report:
    """A bisection with shares, fixes, flips, and choices with and without effect."""
    tokens = {"input_ids": random_tokens(SEQUENCES, TOKENS)}
    recipe = write_recipe(folder, checkpoint, tokens, {}, CHOICES, below=1e-9)
    return bisect(recipe, device="cpu", opener=opened, options=Options(attribute=True))


def hostile(report: Report) -> Report:
    """The report with HOSTILE behind every text in it, and as the text of every token."""
    spoilt: Report = _spoilt(report)
    tokens = spoilt.per_token
    assert tokens is not None
    rows, columns = tokens.real.shape
    return replace(spoilt, per_token=replace(tokens, pieces=((HOSTILE,) * columns,) * rows))


def _spoilt(value: Any) -> Any:
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, tuple):
        return tuple(map(_spoilt, value))
    if isinstance(value, np.ndarray) or not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(
        value,
        **{name: part for name in parts if name not in _CLOSED and (part := _spoilt(parts[name])) is not parts[name]},
    )


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips where there is none, and says how to get one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'moeparity[test]'")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], env=environment
        )
        yield browser
        browser.close()
