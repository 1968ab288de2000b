"""Where spans take a state over, whose state stands at a copied border, and whose it would be without a reset."""

from __future__ import annotations

from moeparity.plan.schedule.borders import Borders, End
from moeparity.plan.schedule.steps import Copy, Phase, Schedule, Shape, Span, Step, rectangle


def step(
    *spans: tuple[int, int, int], shape: Shape = "flat", copies: tuple[Copy, ...] = (), filler: bool = False
) -> Step:
    phase: Phase = "prefill"
    return Step(spans=tuple(Span(*span) for span in spans), shape=shape, phase=phase, copies=copies, filler=filler)


def borders(*steps: Step) -> Borders:
    return Borders(Schedule(steps=steps))


def test_a_span_goes_on_where_an_earlier_one_of_its_sequence_ended() -> None:
    of = borders(step((0, 2, 5), (1, 0, 3)), step((1, 3, 4)), step((0, 5, 9)), step((0, 0, 2), (1, 4, 9), filler=True))
    assert of.continued == {End(1, 3), End(0, 5), End(1, 4)}
    assert of.before(Span(0, 5, 9)) == End(0, 5)
    # Padding at the left is computed last, and nobody goes on from it.
    assert of.before(Span(0, 2, 5)) is None
    assert of.before(Span(0, 0, 2)) is None


def test_a_dense_step_goes_on_in_all_its_rows_or_begins_in_some() -> None:
    of = borders(step((0, 0, 4), shape="packed"), rectangle(0, 2, 4, 6, "decode"), step((1, 0, 4), filler=True))
    assert of.continued == {End(0, 4)}


def test_the_state_at_the_end_of_copied_blocks_is_their_sources() -> None:
    of = borders(
        step((0, 0, 9)),
        step((1, 7, 9), copies=(Copy(1, 1, 7, 0, -1),)),
        step((2, 8, 9), copies=(Copy(2, 0, 4, 1, 1), Copy(2, 4, 8, 0, 0))),
    )
    assert of.continued == {End(1, 7), End(2, 8)}
    assert of.origin(End(1, 7)) == End(0, 6)
    assert of.origin(End(1, 9)) == End(1, 9)
    assert of.origin(End(2, 8)) == End(0, 8)
    # A copy of a copy.
    assert of.origin(End(2, 4)) == End(0, 4)
    assert of.taken_of(of, resets=True) == {0: [6, 8]}


def test_another_schedule_takes_states_over_within_copied_tokens() -> None:
    copying = borders(step((0, 0, 9)), step((1, 6, 9), copies=(Copy(1, 0, 6, 0, 0),)))
    decoding = borders(rectangle(0, 2, 0, 4), rectangle(0, 2, 4, 8), rectangle(0, 2, 8, 9))
    assert decoding.taken_of(copying, resets=True) == {0: [4, 8], 1: [8]}
    assert decoding.taken_of(decoding, resets=True) == {0: [4, 8], 1: [4, 8]}


def test_in_a_pack_the_one_before_would_be_gone_on_from() -> None:
    of = borders(step((1, 0, 3), (0, 0, 4), (2, 1, 9), shape="packed"), step((3, 0, 9), shape="packed"))
    assert of.continued == frozenset()
    assert of.unreset == {End(0, 0): End(1, 3), End(2, 1): End(0, 4), End(3, 0): End(2, 9)}
    assert of.taken_of(of, resets=False) == {0: [4], 1: [3], 2: [9]}


def test_a_slot_is_that_of_the_last_request_that_gave_one_back() -> None:
    of = borders(
        step((0, 0, 4), (1, 0, 4)),
        step((0, 4, 5), (2, 0, 4)),
        step((3, 0, 4)),
        step((4, 2, 4), copies=(Copy(4, 0, 2, 0, 0),)),
        step((5, 0, 4), (2, 4, 6)),
        step((1, 4, 9), filler=True),
    )
    # Request 4 overwrites the slot of 3 with the state of a prefix; 2 runs until the end.
    assert of.unreset == {End(2, 0): End(1, 4), End(3, 0): End(0, 5), End(5, 0): End(4, 4)}


def test_dense_steps_have_no_slots() -> None:
    assert borders(rectangle(0, 2, 0, 9), rectangle(2, 4, 0, 9)).unreset == {}
