"""A report with everything a page draws, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.report import Report
from tests.bisection.pages import small_report


@pytest.fixture(scope="session")
def drawn_report(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Report:
    return small_report(tmp_path_factory.mktemp("drawn"), qwen3_moe)
