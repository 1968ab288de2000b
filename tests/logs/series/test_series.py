"""From chunks to a series, repeated runs, and their pictures."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
import torch

from benchmarks.language import NOISES, STYLES, Setting, log
from moeparity.errors import LogError, MoeparityError
from moeparity.logs.series.data import Point, Series
from moeparity.logs.series.pictures import chart, save_repeats, save_series
from moeparity.logs.series.repeated_batch import repeats
from moeparity.logs.series.summary import of_steps, summarise
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.registry import METRICS

K3, TME = METRICS["k3"], METRICS["token_mult_prob_error"]


@pytest.fixture(scope="module")
def batch() -> Chunk:
    return log(Setting(), STYLES["usual"], NOISES["dense"], sequences=10, tokens=20, vocabulary=32, seed=1)


def run(batch: Chunk, seed: int, *, spike: int | None = None) -> Accumulator:
    generator = torch.Generator().manual_seed(seed)
    trainer = batch.trainer + 0.01 * torch.randn(batch.trainer.shape, generator=generator, dtype=torch.float64)
    if spike is not None:
        trainer = torch.where(batch.sequence == spike, trainer - 1.0, trainer)
    totals = Accumulator((K3, TME))
    totals.add(dataclasses.replace(batch, trainer=trainer.clamp(max=-1e-9)))
    return totals


@pytest.fixture(scope="module")
def series(batch: Chunk) -> Series:
    return of_steps(K3, {step: run(batch, step, spike=4 if step == 30 else None) for step in (*range(10, 28), 30, 50)})


def test_a_step_knows_who_carries_it(series: Series, batch: Chunk) -> None:
    assert series.steps == [*range(10, 28), 30, 50]
    worst = series.points[-2]
    assert (worst.step, worst.carriers[0].id) == (30, "s4")
    assert worst.carriers[0].share > 0.9
    assert (worst.tokens, worst.sequences) == (200, 10)
    assert series.values[0] == run(batch, 10).estimate(K3)


def test_the_summary_names_the_spike_and_its_sequence(series: Series) -> None:
    summary = summarise(series)
    assert [spike.point.step for spike in summary.spikes] == [30]
    assert "1 spike:" in summary.lines()
    text = "\n".join(summary.lines())
    assert "step 30" in text
    assert "carried by s4" in text
    assert "no trend" in text


def test_the_chart_shows_it_within_its_width(series: Series) -> None:
    picture = chart(summarise(series), width=60, height=8)
    assert max(len(line) for line in picture) <= 60
    assert "^" in picture[1]
    assert "log axis" in picture[0]
    assert chart(summarise(series), log=False)[0].count("log") == 0


def test_charts_of_nothing_and_of_one_value() -> None:
    def of(*values: float) -> Series:
        points = tuple(Point(step=i, value=value, tokens=1, sequences=1) for i, value in enumerate(values))
        return Series(metric="k3", unit="nats", points=points)

    assert chart(summarise(of(math.nan))) == []
    assert summarise(of(math.nan)).lines() == ["k3: no finite value"]
    assert len(chart(summarise(of(0.0)))) == 15
    assert len(chart(summarise(of(1.0, 1.0)))) == 15


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_pictures_are_written(series: Series, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"k3{ending}"
    save_series([summarise(series)], path)
    start = path.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if ending == ".png" else start.startswith(b"<?xml")
    first = path.read_bytes()
    save_series([summarise(series)], path)
    assert path.read_bytes() == first


def test_what_a_picture_needs_is_said(series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MoeparityError, match=r"a picture ends in one of \.png"):
        save_series([summarise(series)], tmp_path / "k3.gif")
    with pytest.raises(MoeparityError, match="cannot be written"):
        save_series([summarise(series)], tmp_path / "nowhere" / "k3.png")
    empty = Series(metric="k3", unit="nats", points=(Point(step=1, value=math.nan, tokens=1, sequences=1),))
    with pytest.raises(MoeparityError, match="no finite value"):
        save_series([summarise(empty)], tmp_path / "k3.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MoeparityError, match=r"pip install 'moeparity\[plot\]'"):
        save_series([summarise(series)], tmp_path / "k3.png")


def test_an_unreproducible_spike_is_a_distribution(batch: Chunk, tmp_path: Path) -> None:
    names = [f"run{i}" for i in range(9)]
    result = repeats(TME, names, [run(batch, i, spike=3 if i == 6 else None) for i in range(9)])
    assert result.spiking == (6,)
    assert result.least < result.median < 1.05 < result.greatest
    assert result.alarms == 1
    assert [(sequence.id, sequence.spikes) for sequence in result.unsteady[:1]] == [("s3", 1)]
    assert "1 of 9 runs with a spike: run6" in result.lines()[0]
    save_repeats(result, tmp_path / "runs.svg")
    assert "s3" in (tmp_path / "runs.svg").read_text("utf-8")


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_a_hostile_id_is_text_in_a_picture(
    batch: Chunk, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No formula (`$` of a broken one would end the run), no markup, nothing that a reader of XML refuses."""
    hostile = '$\\frac{$ "]--><script/>\n\x1b]0;a\x07\u202eb' + "c" * 3000
    batch = dataclasses.replace(batch, ids=(*batch.ids[:3], hostile, *batch.ids[4:]))
    names = [f"run{i}" for i in range(9)]
    result = repeats(TME, names, [run(batch, i, spike=3 if i == 6 else None) for i in range(9)])
    assert [sequence.id for sequence in result.unsteady[:1]] == [hostile]
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    monkeypatch.setitem(mpl.rcParams, "text.parse_math", True)
    save_repeats(result, tmp_path / f"runs{ending}")
    if ending == ".svg":
        root = ET.fromstring((tmp_path / "runs.svg").read_bytes())
        texts = [text for element in root.iter("{http://www.w3.org/2000/svg}text") for text in element.itertext()]
        (shown,) = [text for text in texts if "frac" in text]
        assert shown.startswith('$\\frac{$ "]--><script/>\\n\\x1b')
        assert len(shown) == 63
        assert not list(root.iter("script"))


def test_few_runs_spike_by_a_factor(batch: Chunk) -> None:
    runs = [run(batch, 0), run(batch, 1), run(batch, 2, spike=3)]
    assert repeats(TME, ["a", "b", "c"], runs).spiking == (2,)
    assert repeats(TME, ["a", "b"], runs[:2]).spiking == ()


def test_runs_of_other_batches_are_refused(batch: Chunk) -> None:
    fewer = dataclasses.replace(batch, ids=(*batch.ids[:-1], "other"))
    longer = dataclasses.replace(
        batch, sequence=torch.where(batch.position == 0, batch.sequence, batch.sequence.clamp(min=1)).sort().values
    )
    first = run(batch, 0)
    with pytest.raises(LogError, match=r"b: other sequences than a \(other\)"):
        repeats(K3, ["a", "b"], [first, run(fewer, 0)])
    with pytest.raises(LogError, match="at least 2 runs"):
        repeats(K3, ["a"], [first])
    with pytest.raises(LogError, match="of other lengths than in a"):
        repeats(K3, ["a", "b"], [first, run(longer, 0)])
