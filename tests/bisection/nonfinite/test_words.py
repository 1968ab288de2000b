"""Where NaN and infinities come from, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.bisection.nonfinite.report import FirstNonfinite
from moeparity.bisection.nonfinite.words import nonfinite_reading


def first(side: str, node: str = "layers[1].moe.experts", **values: object) -> FirstNonfinite:
    fields: dict[str, object] = {"nan": 2, "infinite": 0, "sequences": 1, "tokens": 2, "sequence": 6, "position": 3}
    fields |= {"expert": 11, "padding": False, **values}
    return FirstNonfinite(side=side, node=node, op="experts", **fields)  # type: ignore[arg-type]


def speak(
    entries: Sequence[FirstNonfinite], scored: int = 0, made_by: Sequence[str] = (), ended_by: Sequence[str] = ()
) -> list[str]:
    return list(nonfinite_reading(entries, made_by, ended_by, scored, (8, 16)))


PLACE = "at layers[1].moe.experts (experts), expert 11, sequence 6, position 3 (both from 0): there it is 2 values in "


def test_one_side_and_its_causes() -> None:
    assert speak([first("candidate")], 3, ["a"], ["a", "b"]) == [
        f"The candidate first has NaN {PLACE}2 of 128 tokens, in 1 of 8 sequences.",
        "The reference has neither NaN nor infinities at any node.",
        (
            "3 scored tokens are without a number for it. A mean with NaN in it is NaN and has no parts: no shares are "
            "taken of it, and errors are those of the values that are finite on both sides."
        ),
        "Alone in the reference, a makes scored tokens that are not finite.",
        "With a or b alone restored, no scored token is left that is not finite.",
    ]
    assert speak([first("reference")])[1] == "The candidate has neither NaN nor infinities at any node."


def test_kinds_and_padding_are_told() -> None:
    assert speak([first("candidate", nan=0, infinite=2)])[0].startswith("The candidate first has infinities at")
    assert speak([first("candidate", nan=1, infinite=1)])[0].startswith("The candidate first has NaN and infinities at")
    padded = speak([first("candidate", padding=True, expert=None)])
    assert padded[0].startswith("The candidate first has NaN in padding at layers[1].moe.experts (experts), sequence 6")
    assert padded[-1] == "No scored token has logits that are not finite."


def test_both_sides_from_one_place_from_other_tokens_and_from_other_nodes() -> None:
    same, reference = first("candidate"), first("reference")
    assert "Both sides have it there: no difference between them is needed for it." in speak([reference, same])
    token = first("candidate", position=4)
    assert "Both sides have some from layers[1].moe.experts on, first at other tokens." in speak([reference, token])
    node = first("candidate", "norm")
    assert "Both sides have some, from other nodes on: layers[1].moe.experts and norm." in speak([reference, node])
    assert not any("has neither" in sentence for sentence in speak([reference, node]))
