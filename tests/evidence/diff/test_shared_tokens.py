"""Sequences of two sides meet by their ids, or by a stated layout."""

from __future__ import annotations

from moeparity.evidence.alignment.tokens import Sequence, Tokens, stated
from moeparity.evidence.diff.shared_tokens import matched


def test_packed_sequences_meet_their_padded_partners_by_ids() -> None:
    padded = Tokens((2, 4), (Sequence((5, 6), (2, 3)), Sequence((7, 8, 9), (5, 6, 7))))
    packed = Tokens((5,), (Sequence((7, 8, 9), (0, 1, 2)), Sequence((5, 6), (3, 4))))
    (match,) = matched([padded], [packed]).values()
    assert match.a.tolist() == [2, 3, 5, 6, 7]
    assert match.b.tolist() == [3, 4, 0, 1, 2]
    assert not match.alike


def test_the_same_sequence_twice_has_one_partner_each() -> None:
    twice = Tokens((2, 2), (Sequence((5, 6), (0, 1)), Sequence((5, 6), (2, 3))))
    once = Tokens((1, 2), (Sequence((5, 6), (0, 1)),))
    assert {key: match.a.tolist() for key, match in matched([twice], [once, once]).items()} == {
        (0, 0): [0, 1],
        (0, 1): [2, 3],
    }


def test_a_stated_layout_needs_no_ids() -> None:
    (match,) = matched([stated([2, 3], 4, at_left=True)], [stated([2, 3], None, at_left=False)]).values()
    assert (match.a.tolist(), match.b.tolist()) == ([2, 3, 5, 6, 7], [0, 1, 2, 3, 4])
