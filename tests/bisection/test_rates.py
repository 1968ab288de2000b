"""Rates of a machine: measured once, kept, and measured anew where anything that they go by is another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from moeparity.bisection import rates
from moeparity.engine.duration import CALLS, MULTIPLY_ADDS, Rates

CPU = torch.device("cpu")


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Sequence[str]]:
    """The dtypes of every measurement, of which none takes time; the cache is a folder of the test's own."""
    measurements_there: list[Sequence[str]] = []

    def measured(dtypes: Sequence[str], *_: object, **__: object) -> Rates:
        measurements_there.append(dtypes)
        return Rates(seconds={(MULTIPLY_ADDS, "bf16"): 1e-11 * len(measurements_there), (CALLS, ""): 1.0})

    monkeypatch.setattr(rates, "measured_rates", measured)
    monkeypatch.setattr(rates, "_seconds_of_a_call", lambda *_: 1e-3)
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path / "cache"))
    return measurements_there


def test_they_are_measured_once_and_kept_with_their_day(measurements: list[Sequence[str]]) -> None:
    first, second = (rates.machine_rates(["bf16"], CPU) for _ in range(2))
    assert len(measurements) == 1
    assert first == second
    assert first.rates.seconds == {(MULTIPLY_ADDS, "bf16"): 1e-11, (CALLS, ""): 1e-3}
    assert first.file is not None
    assert str(first).startswith(f"of this machine, measured on {first.date}, kept in ")


def test_another_machine_has_others(measurements: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    rates.machine_rates(["bf16"], CPU)
    rates.machine_rates(["bf16", "fp32"], CPU)
    assert len(measurements) == 2
    monkeypatch.setattr(rates, "cpu_name", lambda: "another processor")
    rates.machine_rates(["bf16"], CPU)
    monkeypatch.setattr(rates, "numerics_key", lambda _: {"torch": "another", "threads": "2"})
    rates.machine_rates(["bf16"], CPU)
    assert len(measurements) == 4


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "moeparity.rates/0"}', "of another", "no number"])
def test_what_cannot_be_read_is_measured_and_written_anew(text: str, measurements: list[Sequence[str]]) -> None:
    file = rates.machine_rates(["bf16"], CPU).file
    assert file is not None
    fields = json.loads(file.read_text("utf-8"))
    if text == "of another":
        text = json.dumps({**fields, "of": {}})
    elif text == "no number":
        text = json.dumps({**fields, "seconds": [["calls", "", float("nan")]]})
    file.write_text(text, "utf-8")
    rates.machine_rates(["bf16"], CPU)
    assert len(measurements) == 2
    rates.machine_rates(["bf16"], CPU)
    assert len(measurements) == 2


def test_a_cache_that_cannot_be_used_keeps_nothing(
    measurements: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path / "file"))
    assert rates.machine_rates(["bf16"], CPU).file is None
    assert len(measurements) == 1


def test_a_call_takes_some_time() -> None:
    assert 0 < rates._seconds_of_a_call("cpu", rates._clock(CPU)) < 1
