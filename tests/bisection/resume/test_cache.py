"""Whose the cache is, and what is removed from it."""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from moeparity.bisection.resume.cache import KEPT_DAYS, prepared


def test_the_key_is_one_for_all_runs_and_nobody_elses(tmp_path: Path) -> None:
    key = prepared(tmp_path / "cache")
    assert prepared(tmp_path / "cache") == key
    assert len(key) == 32
    assert (tmp_path / "cache" / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_a_half_written_key_is_replaced(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "key").write_bytes(b"half")
    key = prepared(tmp_path)
    assert len(key) == 32
    assert prepared(tmp_path) == key


def test_runs_that_begin_at_once_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the file of the first before there is a key in it."""
    make = secrets.token_bytes
    keys: list[Future[bytes]] = []

    def slow(size: int) -> bytes:
        if not keys:
            keys.append(late_run := pool.submit(prepared, tmp_path))
            with pytest.raises(TimeoutError):
                late_run.result(0.2)
        return make(size)

    monkeypatch.setattr(secrets, "token_bytes", slow)
    with ThreadPoolExecutor(1) as pool:
        key = prepared(tmp_path)
        assert keys[0].result(5) == key == (tmp_path / "key").read_bytes()


def test_what_killed_runs_left_ends(tmp_path: Path) -> None:
    for name, days in (("old", KEPT_DAYS + 1), ("new", KEPT_DAYS - 1)):
        (tmp_path / "passes" / name).mkdir(parents=True)
        (tmp_path / "passes" / name / "0.safetensors").touch()
        os.utime(tmp_path / "passes" / name, (time.time() - days * 86400,) * 2)
    prepared(tmp_path)
    assert [path.name for path in (tmp_path / "passes").iterdir()] == ["new"]
