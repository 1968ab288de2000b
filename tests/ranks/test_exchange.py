"""Records of one moment: what all ranks have is held to each other, what only some have is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.errors import RankError
from moeparity.ranks.exchange import Exchange

SAME = {"envelope.chunk": "3"}


def agree(*records: dict[str, str]) -> list[str | None]:
    """What each rank was told; None where it may go on."""
    store = HashStore()

    def verdict(rank: int) -> str | None:
        exchange = Exchange(PrefixStore("test", store), rank, len(records), lambda: None, 1)
        try:
            exchange.agree(records[rank], "call 0")
        except RankError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(records)) as ranks:
        return list(ranks.map(verdict, range(len(records)), timeout=20))


def test_ranks_of_several_process_groups_are_in_step() -> None:
    """Each rank has collectives of its own groups: tensor-parallel ones, of which the others know nothing."""
    groups = ({"collectives.1": "7 calls"}, {"collectives.1": "7 calls"}, {"collectives.2": "8 calls"})
    assert agree(*(SAME | group for group in groups)) == [None, None, None]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({**SAME, "collectives.1": "6 calls"}, "collectives.1: rank 0 7 calls, rank 1 6 calls"),
        ({"envelope.chunk": "4", "collectives.1": "7 calls"}, "envelope.chunk: ranks 0, 2 3, rank 1 4"),
    ],
)
def test_who_shares_a_field_is_held_to_it(odd: dict[str, str], words: str) -> None:
    verdicts = agree({**SAME, "collectives.1": "7 calls"}, odd, {**SAME, "collectives.2": "8 calls"})
    assert verdicts == [f"call 0: ranks are not in step. {words}"] * 3
