"""The log that the benchmark times is one of NeMo-RL, and of the size asked for."""

from __future__ import annotations

from pathlib import Path

from benchmarks.logs import POOL, WORKS, write
from moeparity import logs


def test_the_file_is_read_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "train_data_step1.jsonl"
    write(path, 8)
    assert 8e6 <= path.stat().st_size < 9e6
    log = logs.open([path])
    assert [each.name for each in log.formats] == ["nemo-rl"]
    ids = [sequence.id for sequence in log]
    assert ids == [f"1/{number}" for number in range(len(ids))]
    assert len(ids) > POOL
    for work in WORKS.values():
        work(path)
