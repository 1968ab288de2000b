"""Pieces handed out: results by number whatever the order, lost workers replaced, refusals, errors, progress."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from moeparity.bisection.workers.crew import LOSSES, LostWorkerError, Piece, computed
from moeparity.bisection.workers.message import DONE, FAILED, REFUSED, TASKS
from moeparity.errors import GraphError, MoeparityError
from moeparity.progress import Progress
from tests.bisection.workers.hands import Hand, Hands
from tests.log_records import Records

STORED: dict[int, int] = {}
KEPT: dict[int, int] = {}


class Square(Piece):
    """A number to be squared: its place."""

    def stored(self) -> int | None:
        return STORED.get(self.place)

    def keep(self, result: int) -> None:
        KEPT[self.place] = result

    def compute(self) -> int:
        if self.place == 13:
            raise GraphError("no luck")
        return self.place**2

    def message(self) -> bytes:
        return str(self.place).encode()

    def read(self, data: bytes) -> int:
        return int(data)


def square(number: int) -> Square:
    return Square(name=f"square {number}", place=number, key="", store=None, codec=TASKS)


def squared(hand: Hand, message: bytes) -> bytes:
    return DONE + str(int(message) ** 2).encode()


def results(hands: Hands | None, numbers: list[int], events: list[Progress] | None = None) -> dict[int, Any]:
    progress = None if events is None else events.append
    pieces = computed(map(square, numbers), hands, "square", len(numbers), progress)
    return {piece.place: result for piece, result in pieces}


def test_results_go_by_number_whatever_comes_first() -> None:
    gate = threading.Event()

    def last_first(hand: Hand, message: bytes) -> bytes:
        if message == b"0":
            assert gate.wait(10)
        elif message == b"5":
            gate.set()
        return squared(hand, message)

    events: list[Progress] = []
    hands = Hands(last_first)
    order = [piece.place for piece, _ in computed(map(square, range(6)), hands, "square", 6, events.append)]
    assert (order[-1], sorted(order)) == (0, list(range(6)))
    assert results(Hands(squared), list(range(6))) == results(None, list(range(6)))
    assert len(hands.hired) == 2
    assert not hands.dismissed
    assert (events[-1].done, events[-1].total, events[-1].step) == (6, 6, "2 workers")
    assert all(earlier.done <= later.done for earlier, later in pairwise(events))
    assert any(report.part for report in events)


def test_pieces_are_made_as_they_are_needed() -> None:
    made_numbers: list[int] = []

    def pieces() -> Any:
        for number in range(100):
            made_numbers.append(number)
            yield square(number)

    results_of = computed(pieces(), Hands(squared, count=3), "square", 100)
    next(results_of)
    assert len(made_numbers) <= 5
    results_of.close()  # type: ignore[attr-defined]


def test_workers_stay_for_the_next_pieces_and_end_where_not_all_is_wanted() -> None:
    hands = Hands(squared)
    for _ in range(3):
        assert results(hands, list(range(4))) == {number: number**2 for number in range(4)}
    assert len(hands.hired) <= 2
    assert not any(hand.ended for hand in hands.hired)
    some = computed(map(square, range(4)), hands, "square", 4)
    next(some)
    some.close()  # type: ignore[attr-defined]
    assert all(hand.ended for hand in hands.hired)


def test_nobody_is_hired_beyond_the_pieces_and_none_without_one() -> None:
    hands = Hands(squared, count=50)
    assert results(hands, [3]) == {3: 9}
    assert len(hands.hired) == 1
    idle = Hands(squared)
    assert results(idle, []) == {}
    assert idle.hired == []


def test_a_lost_worker_is_replaced_and_only_its_piece_is_begun_anew(log_records: Records) -> None:
    messages: Counter[bytes] = Counter()

    def lost_once(hand: Hand, message: bytes) -> bytes:
        messages[message] += 1
        if message == b"2" and messages[message] == 1:
            raise LostWorkerError("ended by signal 9")
        return squared(hand, message)

    hands = Hands(lost_once)
    assert results(hands, list(range(6))) == {number: number**2 for number in range(6)}
    assert messages == {str(number).encode(): 1 + (number == 2) for number in range(6)}
    # One ended with that piece, unless the other worker had taken what was left by then.
    assert len(hands.hired) in {2, 3}
    assert "square 2: its worker was lost, ended by signal 9; another begins it anew" in log_records.text


def test_a_piece_that_ends_every_worker_ends_the_run() -> None:
    messages: Counter[bytes] = Counter()

    def deadly(hand: Hand, message: bytes) -> bytes:
        messages[message] += 1
        if message == b"1":
            raise LostWorkerError("ended by signal 9")
        return squared(hand, message)

    hands = Hands(deadly)
    with pytest.raises(MoeparityError, match=rf"square 1 has ended {LOSSES} workers, the last ended by signal 9"):
        results(hands, list(range(4)))
    assert messages[b"1"] == LOSSES
    assert hands.dismissed


def test_a_refused_worker_computes_nothing_and_the_others_do_it_all(log_records: Records) -> None:
    def refuses(hand: Hand, message: bytes) -> bytes:
        return REFUSED + b"it has torch 1.0" if hand.number == 0 else squared(hand, message)

    hands = Hands(refuses, count=3)
    assert results(hands, list(range(5))) == {number: number**2 for number in range(5)}
    assert len(hands.hired[0].messages) == 1
    assert "a worker was refused: it has torch 1.0" in log_records.text


def test_where_all_are_refused_nothing_is_computed() -> None:
    hands = Hands(lambda *_: REFUSED + b"it has torch 1.0")
    with pytest.raises(MoeparityError, match=r"no worker may compute for this run. The last: it has torch 1.0"):
        results(hands, list(range(5)))
    assert hands.dismissed


def test_a_users_mistake_takes_the_place_of_a_result_and_stops_no_other() -> None:
    def fails(hand: Hand, message: bytes) -> bytes:
        words = FAILED + json.dumps(["GraphError", "no luck"]).encode()
        return words if message == b"13" else squared(hand, message)

    for hands in (Hands(fails), None):
        KEPT.clear()
        by_number = results(hands, [1, 13, 2])
        assert (type(by_number[13]), str(by_number[13])) == (GraphError, "no luck")
        assert KEPT == {1: 1, 2: 4} == {number: by_number[number] for number in (1, 2)}


def test_what_is_kept_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORED, 2, -4)
    for hands in (Hands(squared), None):
        events: list[Progress] = []
        assert results(hands, [1, 2, 3], events) == {1: 1, 2: -4, 3: 9}
        if hands is not None:
            assert sorted(message for hand in hands.hired for message in hand.messages) == [b"1", b"3"]
            assert (events[-1].done, events[-1].total) == (3, 3)


@pytest.mark.parametrize("kind", ["KeyError", "Where", "os"])
def test_a_mistake_of_moeparitys_own_is_raised(kind: str) -> None:
    hands = Hands(lambda *_: FAILED + json.dumps([kind, "lost its way"]).encode())
    with pytest.raises(RuntimeError, match=rf"the worker of square 4: {kind}: lost its way"):
        results(hands, [4])


def test_where_nobody_can_be_hired_it_is_told() -> None:
    def no_more() -> None:
        raise MoeparityError("--workers: no process could be started")

    with pytest.raises(MoeparityError, match="no process could be started"):
        results(Hands(squared, at_hire=no_more), [1, 2])
