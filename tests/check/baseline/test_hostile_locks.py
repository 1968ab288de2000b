"""Locks that nobody wrote: each is read or refused in one message, and none that is another than kept passes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeparity.check.baseline.baseline import Baseline
from moeparity.check.baseline.compare import PresentRun
from moeparity.check.baseline.lock import Lock, read, text
from moeparity.errors import MoeparityError
from moeparity.output.findings import findings_code
from tests.check.baseline.test_compare import RECIPE, ran

__all__ = ["ran"]
ODD: list[Any] = [None, True, -1, 1e400, "", "\x1b[31m\u202e", "a" * 5000, [], {}, [["fp32", "read"]], {"at_most": -1}]


def leaves(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, item in value.items():
        yield (*at, key)
        if isinstance(item, dict):
            yield from leaves(item, (*at, key))


def code(path: Path, ran: PresentRun) -> int:
    """The exit code of a lock: 2 where it is refused."""
    try:
        lock = read(path)
    except MoeparityError as error:
        assert "\n" not in str(error)
        return 2
    try:
        return findings_code(Baseline(path=Path(path.name), lock=lock).findings(RECIPE, ran))
    except MoeparityError:
        assert RECIPE.name not in lock.recipes
        return 2


def test_a_lock_with_one_value_put_in_place_of_another(ran: PresentRun, tmp_path: Path) -> None:
    draw, path = random.Random(20), tmp_path / "x.lock.json"  # noqa: S311
    whole = json.loads(text(Lock(recipes={RECIPE.name: ran.entry})))
    places = list(leaves(whole))
    codes = []
    for place in draw.sample(places, 150):
        fields = copy.deepcopy(whole)
        holder = fields
        for key in place[:-1]:
            holder = holder[key]
        value = draw.choice(ODD)
        changed = holder[place[-1]] != value
        holder[place[-1]] = value
        path.write_text(json.dumps(fields), "utf-8")
        codes.append(code(path, ran))
        # A budget is a bound, which may be any that holds; bits of no machine are not judged.
        free = "budgets" in place or (place[-1] == "machines" and value == {})
        assert codes[-1] in {1, 2} or free or not changed, (place, value)
    assert {1, 2} <= set(codes)


@pytest.mark.parametrize("seed", range(40))
def test_a_lock_with_other_bytes(ran: PresentRun, tmp_path: Path, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "x.lock.json"  # noqa: S311
    data = bytearray(text(Lock(recipes={RECIPE.name: ran.entry})).encode())
    place = draw.randrange(len(data))
    if seed % 3 == 0:
        del data[place:]
    elif seed % 3 == 1:
        data[place] ^= 1 << draw.randrange(8)
    else:
        del data[place : place + draw.randrange(1, 200)]
    path.write_bytes(data)
    judged = code(path, ran)
    if seed % 3 == 0:
        assert judged == 2, "what is cut off is refused"
    elif judged == 0:
        # Another digit of a budget may hold too, and what is kept of another machine is not judged here.
        free = {"budgets": ran.entry.budgets, "machines": ran.entry.machines}
        lock_entry = read(path).recipes[RECIPE.name]
        assert lock_entry.model_copy(update=free) == ran.entry
        assert lock_entry.machines.get(ran.machine, ran.entry.machines[ran.machine]) == ran.entry.machines[ran.machine]


def test_what_a_lock_says_cannot_command_a_terminal(ran: PresentRun, tmp_path: Path) -> None:
    path = tmp_path / "x.lock.json"
    fields = json.loads(text(Lock(recipes={RECIPE.name: ran.entry})))
    fields["recipes"][RECIPE.name]["\x1b[31m"] = 1
    path.write_text(json.dumps(fields), "utf-8")
    with pytest.raises(MoeparityError, match="the lock is not as it was written"):
        read(path)
