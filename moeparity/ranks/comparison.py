"""Compares the records of all ranks, and says in words what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Never

import torch

from moeparity.errors import RankError
from moeparity.ranks import rng
from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.counters import ENVELOPE, Counters
from moeparity.ranks.differing_fields import Records, difference, differing, ranks_in_words
from moeparity.ranks.exchange import Exchange
from moeparity.ranks.journal import Journal
from moeparity.ranks.tails import Waiting, first_disagreement
from moeparity.ranks.whereabouts import Whereabouts


class Comparison:
    """Compares this rank's fields with those of all others. What differs is also written to the rank's journal.
    exchange: None for a rank that is alone, so that nothing is compared.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        journal: Journal,
        whereabouts: Whereabouts,
        generators: Mapping[str, torch.Generator],
    ) -> None:
        self.exchange: Exchange | None = None
        self.log: CollectiveLog | None = None
        self._rank, self._ranks, self._journal = rank, ranks, journal
        self._whereabouts, self._generators = whereabouts, generators
        self._counters = Counters()

    def agree(
        self, fields: Mapping[str, str], at: str, judge: Callable[[Records], str | None], place: str | None = None
    ) -> None:
        """Return if all ranks have the same fields at this moment; else raises RankError."""
        if self.exchange is None:
            return
        try:
            self.exchange.reached(self._whereabouts.note)
            with self._whereabouts.waiting():
                self.exchange.agree(fields, at, judge, place)
        except RankError as error:
            self._journal.write("difference", text=str(error))
            raise

    def call(self, fields: Mapping[str, str], number: int) -> None:
        """Return if all ranks have the same fields at this call; else raises RankError. A skipped call is reported
        before what follows from it: other draws and inputs.
        """
        counters = self._counters
        self.agree(fields, f"call {number}", lambda records: counters.apart(number, records) or self.judge(records))
        counters.agreed(number, fields)

    def gathered(self, fields: Mapping[str, str], at: str) -> Records:
        """The fields of all ranks. Raises RankError if they are not at the same moment."""
        if self.exchange is None:
            return {self._rank: fields}
        with self._whereabouts.waiting():
            return self.exchange.gathered(fields, at)

    def differ(self, words: str) -> Never:
        """Raises RankError with these words, after writing them to the journal."""
        self._journal.write("difference", text=words)
        raise RankError(words)

    def judge(self, records: Records) -> str | None:
        """What differs at a call, or None. For generators: by how many draws; for collectives: the first that
        differs.
        """
        words = difference(records)
        assert self.exchange is not None, "ranks are compared over an exchange"
        assert self.log is not None, "ranks that are compared log their collectives"
        name = (words or "").partition(":")[0]
        if name.startswith("rng."):
            own_states = {name: state.hex() for name, state in rng.states(self._generators).items()}
            states = self.exchange.gathered(own_states, "generators")
            kind = name.removeprefix("rng.")
            draws = rng.apart(kind, {rank: bytes.fromhex(record[kind]) for rank, record in states.items()})
            envelopes = (each for each in differing(records) if each.startswith(ENVELOPE))
            return "; ".join([draws, *islice(envelopes, 1)])
        if name.startswith("collectives."):
            tails = self.exchange.gathered(self.log.tails(), "collectives")
            return first_disagreement(tails, dict.fromkeys(tails, Waiting(self._whereabouts.place))) or words
        return words

    def collective(self, group: str, call: str, number: int) -> None:
        """Before a collective runs, check that all ranks of the job are about to run the same one. Collectives of
        smaller groups are compared at the guards.
        """
        if self.exchange is None or self.log is None or len(self.log.groups[group].ranks) != self._ranks:
            return
        exchange, place = self.exchange, self._whereabouts.place
        self._whereabouts.at(f"{place}, before collective {number} of {group}")
        op, _, site = call.rpartition(" at ")

        def judge(records: Records) -> str | None:
            # A rank that skipped it may already have left the call in which the others are.
            callers: dict[str, list[int]] = {}
            for rank, record in exchange.gathered({"site": f"at {site} {place}"}, "call sites").items():
                callers.setdefault(record["site"], []).append(rank)
            called = "; ".join(f"{ranks_in_words(ranks)} {where}" for where, ranks in callers.items())
            return f"{difference(records)}; called by {called}"

        at = f"collective {number} of {group}"
        self.agree({"collective": f"{number} {op}"}, at, judge, f"{place}, {at}")
        self._whereabouts.at(place)
