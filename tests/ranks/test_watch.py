"""A watch of one rank, over a store of this process."""

from __future__ import annotations

import pytest
from torch.distributed import DistStoreError, HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.journal import Journal
from moeparity.ranks.watch import Watch


def test_a_store_that_is_slow_at_start_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks start at once and the process that holds the store is busy: nobody is to blame for that."""
    store, beat, beats = PrefixStore("watch", HashStore()), Watch._beat, []
    journal, log = Journal(None, 0, 1), CollectiveLog(None)
    watch = Watch(store, "job", 0, 1, journal, lambda: (0, None, "starting", False, "", 0.0), log, 0.05, 5.0)

    def slow(self: Watch, *, closed: bool = False) -> None:
        beats.append(closed)
        if len(beats) < 3:
            raise DistStoreError("wait timeout after 2000ms")
        beat(self, closed=closed)

    monkeypatch.setattr(Watch, "_beat", slow)
    watch.start()
    try:
        assert len(beats) >= 3
        assert store.check(["beat/0"])
        assert watch.verdict is None
    finally:
        watch.close()
