"""What only fills the grid, and positions that a schedule counts otherwise, in the report of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report

LINES = ('{"input_ids": [3, 1, 4, 1, 5, 9, 2]}', '{"input_ids": [9, 2, 6]}', '{"input_ids": [5, 3, 5, 8]}')
Run = Callable[[str, str], Report]


@pytest.fixture
def run(qwen3_moe: Path, tmp_path: Path) -> Run:
    def run(reference: str, candidate: str) -> Report:
        (tmp_path / "tokens.jsonl").write_text("\n".join(LINES), "utf-8")
        path = tmp_path / "recipe.yaml"
        path.write_text(
            f"kind: recipe\ncheckpoint: {qwen3_moe}\nfloor: false\ngate: {{metric: k3, below: 1e-4}}\n"
            "tokens: {file: tokens.jsonl, padding: left, sampled_from: candidate}\n"
            f"reference: {{profile: vllm-batch-invariant, {reference}}}\n"
            f"candidate: {{profile: vllm-batch-invariant, {candidate}}}\n",
            "utf-8",
        )
        return bisect(path, device="cpu", options=Options())

    return run


def test_padding_that_only_fills_the_grid_is_no_difference(run: Run) -> None:
    """In a batch padded in front pads see each other, in a pack there are none."""
    report = run("schedule: {pack: {length: 16}}", "schedule: {pack: {length: 7}}")
    assert report.roots == ()
    assert all(toggle.had_no_effect for toggle in report.toggles)
    assert all(growth.carried.equal_share == 1 for growth in report.growth)


def test_positions_that_run_on_start_where_they_are_read(run: Run) -> None:
    report = run("schedule: {pack: {length: 16}}", "schedule: {pack: {length: 16, positions: running}}")
    (root,) = report.roots
    assert (root.node, [choice.attribute for choice in root.choices]) == ("rotary", ["schedule:positions"])
    (toggle,) = report.toggles
    assert (toggle.kind, toggle.legal) == ("schedule", True), "distances within a sequence are the same"
    assert report.summary.starts.startswith("rotary: schedule:positions: reset | running")


def test_a_pack_without_its_mask_is_named_as_another_model(run: Run) -> None:
    report = run("micro_batch: 3", "schedule: {pack: {length: 16, mask: none}}")
    kinds = {toggle.name: (toggle.kind, toggle.legal) for toggle in report.toggles if not toggle.had_no_effect}
    assert kinds["schedule:mask"] == ("semantics", False)
    assert "decide what is computed, not how it is rounded" in " ".join(report.reading)
    assert not any("interchangeable" in sentence for sentence in report.reading)
    assert "interchangeable" not in report.summary.blame
