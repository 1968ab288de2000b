"""Monkey-patched programs: every changed node is named, and no innocent one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.evidence.patches import PATCHES
from tests.evidence.traced import reported, tokens

SEED = 20261123


@pytest.mark.parametrize("name", PATCHES)
def test_the_changed_nodes_are_named(qwen3_moe: Path, tmp_path: Path, name: str) -> None:
    expected: set[str] = set()
    draw = Random(f"{SEED} {name}")  # noqa: S311
    report = reported(
        tmp_path,
        qwen3_moe,
        ids=tokens((2, 7)),
        patch=lambda program: expected.update(PATCHES[name](program, draw)),
        further={"grafts": False},
    )
    assert {root.node for root in report.roots} == expected
    assert [root.local for root in report.roots] == sorted((root.local for root in report.roots), reverse=True)
    assert report.summary.starts.startswith(report.roots[0].node)
    assert all(root.local > 0 and root.places for root in report.roots)
    assert report.toggles == ()
    assert "a trace has no choices" in report.summary.blame
