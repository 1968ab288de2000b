"""What `moeparity diff` prints and writes: at 80 columns, as JSON, as Markdown and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import inside
from tests.evidence.diff.scene import model, record
from tests.test_reports import refused


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a`, the same again as `same`, and `stale` with another weight in one expert."""
    folder = tmp_path_factory.mktemp("traces")
    stale_model = model()
    stale_model.layers[1].moe.experts.down[3].data[0, 0] += 0.5
    for name, program in (("a", model()), ("same", model()), ("stale", stale_model)):
        record(folder / name, program)
    return folder


def test_the_first_screen(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = inside("diff", "a", "stale", cwd=traces)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("FAIL    ")
    assert lines[0].endswith("compared values differ; exit 1")
    assert lines[1].startswith("starts  layers.1.moe.experts: another weight is read")
    assert lines[-1] == lines[lines.index("") - 1]


def test_equal_traces_exit_with_0_and_say_what_was_compared(traces: Path) -> None:
    done = inside("diff", "a", "same", cwd=traces)
    assert done.returncode == 0
    assert "PASS    equal bits in all 342 compared values; exit 0" in done.stdout


@pytest.mark.parametrize("folder_b", ["same", "stale"])
def test_what_is_written_fits_its_schema(traces: Path, tmp_path: Path, folder_b: str) -> None:
    files = {ending: tmp_path / f"report.{ending}" for ending in ("json", "markdown", "html")}
    inside("diff", "a", folder_b, *(word for kind, path in files.items() for word in (f"--{kind}", path)), cwd=traces)
    document = json.loads(files["json"].read_text("utf-8"))
    assert refused("diff", document) == []
    assert document["status"] == ("pass" if folder_b == "same" else "fail")
    assert document["status"].upper() in files["markdown"].read_text("utf-8")
    assert "compared values" in files["html"].read_text("utf-8")


def test_what_is_no_trace_is_an_error_of_the_user(traces: Path, tmp_path: Path) -> None:
    done = inside("diff", "a", tmp_path, cwd=traces)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no trace: expected a folder with rank-0" in done.stderr
