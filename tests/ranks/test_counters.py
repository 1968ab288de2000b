"""Which calls a rank skipped, by what its envelope counts."""

from __future__ import annotations

import pytest

from moeparity.ranks.counters import Counters

Envelope = dict[str, str]


def envelope(chunk: int, **further: object) -> Envelope:
    """The envelope of a call that counts chunks, and frames by three."""
    fields = {"call_id": 9, "chunk": chunk, "frame": 3 * chunk, "init_cache": "false", **further}
    return {f"envelope.{name}": str(value) for name, value in fields.items()}


def apart(*envelopes: Envelope, calls: tuple[int, ...] = (0, 1, 2, 3), before: tuple[int, ...] = (0, 1, 2)) -> str:
    """What is said at the last of these calls, after the same envelopes of all ranks at those before."""
    counters = Counters()
    for call, chunk in zip(calls[:-1], before, strict=True):
        counters.agreed(call, envelope(chunk))
    return counters.apart(calls[-1], dict(enumerate(envelopes))) or ""


def test_who_is_ahead_skipped_calls_and_who_is_behind_made_one_again() -> None:
    assert apart(envelope(3), envelope(5), envelope(3)).startswith(
        "rank 1 2 calls ahead, as if calls 3-4 had been skipped: envelope.chunk: ranks 0, 2 3, rank 1 5 (1 further"
    )
    assert apart(envelope(2), envelope(3)).startswith("rank 0 1 call behind, as if call 2 came again: envelope.chunk")
    # Envelopes are compared at every second call.
    assert apart(envelope(6), envelope(7), calls=(0, 2, 4, 6), before=(0, 2, 4)).startswith("rank 1 1 call ahead, ")


@pytest.mark.parametrize(
    "odd",
    [
        envelope(4, frame=9),
        envelope(3, frame=12),
        envelope(3, frame=10),
        envelope(3, init_cache="true"),
        {"envelope.chunk": '"4"'},
    ],
)
def test_what_is_no_skipped_call_is_left_to_others(odd: Envelope) -> None:
    """A field that is wrong by itself, one that counts nothing, one that is no number any more."""
    assert apart(envelope(3), odd) == ""


def test_nothing_is_said_where_nothing_is_known_to_count() -> None:
    assert apart(envelope(3), envelope(4), calls=(2, 3), before=(2,)) == ""
    constant = Counters()
    for call in range(3):
        constant.agreed(call, {"envelope.chunk": "7"})
    assert constant.apart(3, {0: {"envelope.chunk": "7"}, 1: {"envelope.chunk": "8"}}) is None
    assert apart(envelope(4), envelope(5)) == "", "nobody is where this call should be"
