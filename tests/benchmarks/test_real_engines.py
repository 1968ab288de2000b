"""The page of real engines keeps what other machines showed."""

from __future__ import annotations

import pytest

from benchmarks import real_engines
from benchmarks.real_engines import Row, page
from tests.command import ROOT
from tests.real.served import Share


def test_a_machine_replaces_its_own_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed page, whose parts are other machines', written again by two machines that it has not."""
    committed = (ROOT / "docs/generated/real-engines.md").read_text("utf-8")
    elsewhere = [line for line in committed.splitlines() if line.startswith(("| ", "## ")) and "| model |" not in line]
    assert len(elsewhere) > 26
    text = committed
    for machine, drawn in (("One", 1), ("Two", 2), ("One", 3)):
        monkeypatch.setattr(real_engines, "cpu_name", lambda machine=machine: machine)
        text = page(text, [Row("mixtral", "alone", 1, 4, Share(), Share(drawn, 4))])
    lines = text.splitlines()
    assert [line for line in lines if line in elsewhere] == elsewhere
    assert sum(line.startswith("## One, profile") for line in lines) == 1
    assert "| mixtral | alone | 1 | 4 | not recorded | 3 of 4 (75 %) |" in lines
    assert "| mixtral | alone | 1 | 4 | not recorded | 2 of 4 (50 %) |" in lines
    assert not any("1 of 4" in line for line in lines)
