"""What `--workers` takes, and what it says where there is no ray, or no cluster at an address."""

from __future__ import annotations

import re
import socket

import pytest

from moeparity.bisection.workers import cluster
from moeparity.bisection.workers.request import Wanted, crew_of, wanted_workers
from moeparity.errors import MoeparityError


def test_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: name)
    assert wanted_workers(None) is None
    assert wanted_workers(3) == wanted_workers("3") == Wanted(count=3)
    assert wanted_workers("ray") == Wanted(count=None)
    assert wanted_workers("ray:auto") == Wanted(count=None, address="auto")
    assert wanted_workers("ray:10.0.0.1:6379") == Wanted(count=None, address="10.0.0.1:6379")


@pytest.mark.parametrize(
    "word", ["0", "-1", "1025", "1_0", "", "Ray", "ray:", "ray:somewhere", "ray://a:1", "ray:a:123456"]
)
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(MoeparityError, match=re.escape(f"--workers {word}: expected a number of processes from 1 to")):
        wanted_workers(word)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    with pytest.raises(MoeparityError, match=r"ray is not installed. `pip install 'moeparity\[ray\]'`"):
        wanted_workers("ray:auto")


def test_an_address_where_nothing_answers_is_told_within_seconds() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    unreachable = crew_of(Wanted(count=None, address=address))
    with pytest.raises(MoeparityError, match=rf"--workers ray:{address}: nothing answers there"), unreachable:
        pass


def test_without_workers_there_is_no_crew() -> None:
    with crew_of(None) as crew:
        assert crew is None
