"""Where the cache is, whose it is, and what is removed from it."""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from moeparity.bisection.resume.cache import KEPT_DAYS, cache_folder, prepared


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MOEPARITY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "moeparity"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "moeparity"


@pytest.mark.parametrize("home", ["", None, "relative"])
def test_without_a_home_it_is_never_below_the_root(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("MOEPARITY_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    folder = cache_folder()
    assert folder is not None
    assert folder.is_relative_to(Path(f"~{os.environ.get('USER', 'root')}").expanduser())
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert cache_folder() is None


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
