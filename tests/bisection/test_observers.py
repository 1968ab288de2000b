"""What observers make of the values they are shown, on hand-made nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch

from moeparity.bisection.divergence import observe
from moeparity.bisection.divergence.observe import DivergenceObserver, NodeRecord
from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.engine.batch import Rows
from moeparity.engine.grid import Grid
from moeparity.engine.values import Block
from moeparity.engine.view import NodeView
from moeparity.errors import Where
from moeparity.metrics.divergence import compare
from moeparity.metrics.tokens import first_occurrences
from moeparity.ops.registry import OPS
from moeparity.plan.graph import Node
from tests.grids import block as placed
from tests.grids import grid

REFERENCE, CANDIDATE, SHADOW = "reference", "candidate", "shadow"
CELLS = ((0, 1), (1, 2))

Values = Sequence[tuple[list[float], int]]
"""Per cell, one sequence's elements and the identity of the value."""


def unasked(walker: str) -> tuple[torch.Tensor, ...]:
    raise AssertionError("no kernel is called again")


def block(values: Values, *, dtype: torch.dtype = torch.float32, first: int = 0) -> list[Block]:
    """All cells as one block."""
    rows = [torch.tensor(elements).to(dtype) for elements, _ in values]
    value = torch.stack(rows)
    return [placed(value, first, [identity for _, identity in values], one_by_one(value.shape[1]))]


def one_by_one(length: int) -> Grid:
    """Four sequences, each a cell."""
    return grid(length, 0, 1, 2, 3, 4)


def blocks(values: Values, *, first: int = 0) -> list[Block]:
    """One block per cell."""
    return [each_block for i, value in enumerate(values) for each_block in block([value], first=first + i)]


def node(op: str = "add") -> Node:
    declared = OPS[op]
    return Node(
        name=op,
        op=declared,
        inputs=tuple(f"given_{port}" for port in declared.inputs),
        outputs=declared.outputs,
        weights={},
        params={parameter.name: None for parameter in declared.parameters},
        layer=0,
        where=Where(Path(__file__)),
    )


def view(
    outputs: dict[str, list[Block]], inputs: dict[str, list[Block] | None], *, first: int = 0, op: str = "add"
) -> NodeView:
    wave = (first, first + 2)
    inputs_by_name = {name: (blocks_, *[None] * (len(OPS[op].inputs) - 1)) for name, blocks_ in inputs.items()}
    length = next(b[0].batch.grid.length for b in outputs.values())
    return NodeView(
        node(op),
        wave,
        one_by_one(length),
        {name: (b,) for name, b in outputs.items()},
        inputs_by_name,
        {},
        {},
        {},
        unasked,
    )


SAME = blocks([([1.0, 1.0], 0), ([2.0, 2.0], 0)])
OTHER = blocks([([1.0, 1.0], 0), ([9.0, 9.0], 1)])


def record_of(*views: NodeView) -> NodeRecord:
    observer = DivergenceObserver((REFERENCE, CANDIDATE), (REFERENCE, SHADOW))
    for each_view in views:
        observer.see(each_view)
    (record,) = observer.records.values()
    return record


def test_carried_error_is_the_candidates_own_and_local_that_of_its_numerics_alone() -> None:
    outputs = {
        REFERENCE: block([([1.0, 2.0], 0), ([3.0, 4.0], 0)]),
        CANDIDATE: block([([1.0, 2.5], 1), ([7.0, 4.0], 1)]),
        SHADOW: block([([1.0, 2.5], 1), ([3.0, 4.0], 0)]),
    }
    record = record_of(view(outputs, {REFERENCE: SAME, CANDIDATE: OTHER, SHADOW: SAME}))
    assert record.carried is not None
    assert record.local is not None
    assert (record.carried.sum_abs, record.carried.max_abs, record.carried.equal_share) == (4.5, 4.0, 0.5)
    assert (record.local.sum_abs, record.local.max_abs, record.local.equal_share) == (0.5, 0.5, 0.75)
    assert record.local.squared_reference == record.carried.squared_reference == 30.0


def test_a_root_is_equal_inputs_and_unequal_output() -> None:
    """The first sequence is a root, the second inherits: its input differs already."""
    outputs = {
        REFERENCE: block([([1.0], 0), ([3.0], 0)]),
        CANDIDATE: block([([2.0], 1), ([7.0], 1)]),
        SHADOW: block([([2.0], 1), ([3.0], 0)]),
    }
    record = record_of(view(outputs, {REFERENCE: SAME, CANDIDATE: OTHER, SHADOW: SAME}))
    assert record.root_cells.sequences == 1


def test_an_input_that_one_side_does_not_read_makes_no_difference() -> None:
    outputs = {
        REFERENCE: block([([1.0], 0), ([3.0], 0)]),
        CANDIDATE: block([([2.0], 1), ([7.0], 1)]),
        SHADOW: block([([2.0], 1), ([7.0], 1)]),
    }
    record = record_of(view(outputs, {REFERENCE: None, CANDIDATE: OTHER, SHADOW: None}))
    assert record.root_cells.sequences == 2


def test_waves_and_micro_batches_add_up() -> None:
    """The candidate computes one sequence at a time; each wave counts."""

    def wave(first: int) -> NodeView:
        outputs = {
            REFERENCE: block([([1.0, 2.0], 0), ([3.0, 4.0], 0)], first=first),
            CANDIDATE: blocks([([1.0, 2.0], 0), ([3.0, 6.0], 1)], first=first),
            SHADOW: blocks([([1.0, 2.0], 0), ([3.0, 6.0], 1)], first=first),
        }
        inputs: dict[str, list[Block] | None] = {
            REFERENCE: block([([0.0], 0), ([0.0], 0)], first=first),
            CANDIDATE: blocks([([0.0], 0), ([0.0], 0)], first=first),
            SHADOW: block([([0.0], 0), ([0.0], 0)], first=first),
        }
        return view(outputs, inputs, first=first)

    record = record_of(wave(0), wave(2))
    assert record.root_cells.sequences == 2
    assert record.carried is not None
    assert (record.carried.elements, record.carried.sum_abs, record.carried.max_abs) == (8, 4.0, 2.0)


def test_integers_have_no_error() -> None:
    ids = block([([1.0], 0), ([3.0], 0)], dtype=torch.int64)
    record = record_of(
        view(dict.fromkeys((REFERENCE, CANDIDATE, SHADOW), ids), dict.fromkeys((REFERENCE, CANDIDATE, SHADOW), SAME))
    )
    assert (record.carried, record.local) == (None, None)


def test_changes_and_their_roots() -> None:
    outputs = {
        "a": block([([1.0], 0), ([3.0], 0)]),
        "acts": block([([2.0], 1), ([3.0], 0)]),
        "inherits": block([([1.0], 0), ([4.0], 1)]),
    }
    changes = Changes([("acts", "a"), ("inherits", "a"), ("a", "a")])
    changes.see(view(outputs, {"a": SAME, "acts": SAME, "inherits": OTHER}))
    assert changes.nodes == {("acts", "a"): {"add"}, ("inherits", "a"): {"add"}, ("a", "a"): set()}
    assert changes.roots == {("acts", "a"): {"add"}, ("inherits", "a"): set(), ("a", "a"): set()}


def test_routes() -> None:
    def at(layer_ids: dict[str, list[list[int]]]) -> NodeView:
        router = node("router")
        cut = grid(len(next(iter(layer_ids.values()))), 0, 1)
        outputs = {}
        for name, ids in layer_ids.items():
            tensor = torch.tensor([ids])
            weights = torch.ones(tensor.shape)
            outputs[name] = ([placed(tensor, 0, [0], cut)], [placed(weights, 0, [0], cut)])
        return NodeView(router, (0, 1), cut, outputs, dict.fromkeys(layer_ids, ()), {}, {}, {}, unasked)

    routes = Routes(REFERENCE, [CANDIDATE])
    routes.see(at({REFERENCE: [[0, 1], [2, 3], [4, 5]], CANDIDATE: [[0, 1], [3, 2], [4, 6]]}))
    routes.see(view({REFERENCE: SAME, CANDIDATE: SAME}, {}))
    total = routes.total(CANDIDATE)
    assert total is not None
    assert (total.tokens, total.set_flips, total.slot_flips, total.slots_replaced) == (3, 1, 2, 1)
    assert routes.total("nobody") is None

    padded = Routes(REFERENCE, [CANDIDATE], torch.tensor([[True, True, False]]))
    padded.see(at({REFERENCE: [[0, 1], [2, 3], [4, 5]], CANDIDATE: [[0, 1], [3, 2], [4, 6]]}))
    total = padded.total(CANDIDATE)
    assert total is not None
    assert (total.tokens, total.set_flips, total.slot_flips, total.slots_replaced) == (2, 0, 1, 0)


@pytest.mark.parametrize("sampled_from", ["candidate", "reference"])
def test_logits_are_scored_wave_by_wave(sampled_from: Literal["candidate", "reference"]) -> None:
    ids, mask = torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 2, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(2, 2, 3, generator=generator) for _ in range(2))

    cut = grid(2, 0, 1, 2)

    def cell_block(x: torch.Tensor, rows: Rows, identity: int) -> tuple[list[Block]]:
        return ([placed(x[rows[0] : rows[1]], rows[0], [identity], cut)],)

    logits = Logits("lm_head", REFERENCE, [CANDIDATE, "same"], ids, mask, sampled_from, first_occurrences(ids, mask))
    for rows in CELLS:
        outputs = {
            REFERENCE: cell_block(ours, rows, 0),
            CANDIDATE: cell_block(theirs, rows, 1),
            "same": cell_block(ours, rows, 0),
        }
        logits.see(NodeView(node("lm_head"), rows, cut, outputs, {}, {}, {}, {}, unasked))
        logits.see(NodeView(node("add"), rows, cut, outputs, {}, {}, {}, {}, unasked))
    sums = logits.sums(CANDIDATE)
    assert sums.tokens.tolist() == [1.0, 1.0]
    x, y = ours.double().log_softmax(-1), theirs.double().log_softmax(-1)
    delta = (x - y)[:, 0].gather(-1, ids[:, 1:]).squeeze(-1)
    expected = delta if sampled_from == "candidate" else -delta
    assert torch.equal(sums.k3, expected.expm1() - expected)
    assert not bool(logits.sums("same").k3.any())


Made = dict[str, tuple[torch.Tensor, int, dict[str, object]]]
"""By walker: a value [2, T, V], its identity in both sequences, and the form and temperature it was made with."""
LOGITS: dict[str, object] = {"form": "unrounded", "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
REPORTED = LOGITS | {"form": "shifted"}


def at_log_probs(by_side: Made) -> NodeView:
    cut = grid(3, 0, 1, 2)
    outputs = {
        name: ([placed(tensor, 0, [identity, identity], cut)],) for name, (tensor, identity, _) in by_side.items()
    }
    inputs_by_name: dict[str, tuple[list[Block] | None, ...]] = dict.fromkeys(by_side, (SAME,))
    active = {name: choices for name, (_, _, choices) in by_side.items()}
    return NodeView(node("log_probs"), (0, 2), cut, outputs, inputs_by_name, active, {}, {}, unasked)


def some_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed))


def test_logits_in_place_of_log_probs_have_no_error() -> None:
    """What differs there differs at the head already; a root is a root all the same."""
    ours, theirs = some_logits(0), some_logits(1)
    shown = at_log_probs({REFERENCE: (ours, 0, LOGITS), CANDIDATE: (theirs, 1, LOGITS), SHADOW: (ours, 0, LOGITS)})
    record = record_of(shown)
    assert (record.carried, record.local, record.root_cells.sequences) == (None, None, 2)


@pytest.mark.parametrize("chunk", [1, 5, 12, 1 << 19])
def test_the_error_of_log_probs_is_of_what_is_reported(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(observe, "CHUNK", chunk)
    logits = some_logits()
    exact = logits.double().log_softmax(-1)
    first, second = exact.float() + 0.25, exact.to(torch.bfloat16)
    cases: list[tuple[Made, torch.Tensor, torch.Tensor]] = [
        ({REFERENCE: (logits, 0, LOGITS), CANDIDATE: (first, 1, REPORTED)}, exact.float(), first),
        ({REFERENCE: (second, 1, REPORTED), CANDIDATE: (logits, 0, LOGITS)}, second, exact.float()),
        ({REFERENCE: (first, 0, REPORTED), CANDIDATE: (second, 1, REPORTED)}, first, second),
    ]
    for by_side, ours, theirs in cases:
        record = record_of(at_log_probs({**by_side, SHADOW: by_side[CANDIDATE]}))
        assert record.carried is not None
        assert record.local is not None
        expected = compare(ours, theirs)
        for error in (record.carried, record.local):
            assert (error.elements, error.equal) == (30, expected.equal)
            assert (error.max_abs, error.max_ulp, error.sum_ulp) == (
                expected.max_abs,
                expected.max_ulp,
                expected.sum_ulp,
            )
            assert error.sum_abs == pytest.approx(expected.sum_abs, rel=1e-14)


def test_logits_over_another_temperature_are_other_log_probs() -> None:
    logits = some_logits()
    cold = logits.double() / 0.5
    shown = {REFERENCE: (logits, 0, LOGITS), CANDIDATE: (cold, 1, LOGITS | {"temperature": 0.5})}
    record = record_of(at_log_probs({**shown, SHADOW: shown[CANDIDATE]}))
    assert record.carried is not None
    exact = (logits.double().log_softmax(-1).float(), cold.log_softmax(-1).float())
    assert record.carried.max_abs == compare(*exact).max_abs > 0.1


def test_one_value_as_logits_and_as_log_probs_is_scored_twice() -> None:
    """Bits alone do not say what a walker's value is."""
    values = some_logits() - 3
    shown = at_log_probs(
        {REFERENCE: (values, 0, LOGITS), CANDIDATE: (values, 0, LOGITS), "tells": (values, 0, REPORTED)}
    )
    # Two sequences that are not the same, of tokens 0 that are scored: the first is not.
    ids, mask = torch.tensor([[0, 0, 0], [1, 0, 0]]), torch.ones(2, 3, dtype=torch.bool)
    scores = Logits("log_probs", REFERENCE, [CANDIDATE, "tells"], ids, mask, "candidate", first_occurrences(ids, mask))
    scores.see(shown)
    assert not scores.sums(CANDIDATE).abs_delta.any()
    delta = values.double().log_softmax(-1)[:, :-1, 0] - values.double()[:, :-1, 0]
    assert torch.equal(scores.sums("tells").abs_delta, delta.abs().sum(-1))
    assert scores.sums("tells").unequal.tolist() == [2.0, 2.0]
