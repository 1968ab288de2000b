"""Every value of every attribute of the ops with a state, planted where steps hand it on, is found as that choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from moeparity.numerics.dtypes import MODEL, UNROUNDED
from moeparity.ops.attribute import Attribute, Value
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe
from tests.small_models import Shallow

NODES = {
    "gated_delta": "layers[0].mixer.delta",
    "short_conv": "layers[0].mixer.conv",
    "lightning": "layers[1].linear_attention.lightning",
    "mamba2": "layers[0].linear_attention.scan",
    "selective_scan": "layers[0].linear_attention.scan",
}
# Prompts of 20 tokens in chunks, of which all sequences but the first find eight in a cache, and decode steps.
STEPS: dict[str, Any] = {
    "schedule": {
        "rule": "vllm-v1",
        "prefix": {"block": 4},
        "prefill": {"chunk": 10},
        "decode": {"from": 20, "arrivals": [0, 5, 6]},
    }
}
WIDE: dict[str, dict[str, Value]] = {
    **{op: {"output": "fp32", "chunk": 4} for op in ("gated_delta", "mamba2")},
    # As transformers has it a chunk takes no state over.
    "selective_scan": {"output": "fp32", "start": "state"},
}
# One bit of a sigmoid shows in few bf16 numbers.
OF_LABEL: dict[str, dict[str, Value]] = {
    "gated_delta:logistic": {"beta": "fp32"},
    "gated_delta:inverse": {"solve": "rows"},
    "gated_delta:merge": {"solve": "blocks", "chunk": 64},
    "short_conv:product": {"form": "taps"},
    "lightning:block_sum": {"form": "blocks"},
    **{label: {"form": "tokens"} for label in ("mamba2:increment", "mamba2:read")},
    "mamba2:softplus": {"dt": "fp32"},
    "selective_scan:inner": {"read": "fp32"},
    "selective_scan:softplus": {"dt": "fp32", "read": "fp32"},
}
AT_ONCE = ("gated_delta:merge",)
"""What shows in more tokens than a step of prefill has."""
STORED = [a.name for a in OPS["gated_delta"].attributes if a.kind == "rounding" and a.default == UNROUNDED]
NUMBERS: dict[str, Value] = {"gated_delta:chunk": 3, "mamba2:chunk": 3}
ORDERS: dict[str, tuple[Value, ...]] = {
    "gated_delta:order": ("lanes(4) | fold_lo", "sequential(fma)"),
    "gated_delta:squares_order": ("blocks(2, fma) | fold_hi",),
}
SCANS = ("mamba2", "selective_scan")
DTYPES = {
    "gated_delta": "bf16",
    "short_conv": "fp32",
    "lightning": "fp32",
    "mamba2": "bf16",
    "selective_scan": "bf16",
}
"""What a side runs in: the window of the convolution has no more than that."""
SAME = {
    *(f"gated_delta:{site}={dtype}" for site in STORED for dtype in ("fp32", "fp64")),
    *(f"short_conv:product={dtype}" for dtype in ("model", "fp32", "fp64")),
    *(f"short_conv:{site}={dtype}" for site in ("step_state", "block_state") for dtype in ("model", "fp32", "fp64")),
    *(f"lightning:{s}={d}" for s in ("step_state", "block_state") for d in ("model", "fp32", "fp64")),
    *(f"{op}:{s}={d}" for op in SCANS for s in ("step_state", "block_state") for d in ("fp32", "fp64")),
    "lightning:block_sum=fp64",
    "mamba2:chunk_state=fp64",
    "gated_delta:chunk_state=fp64",
}
"""Values that hold all bits of what was computed."""


@pytest.fixture(scope="session")
def of_op(gated: Path, shallow: Shallow) -> dict[str, Path]:
    """A checkpoint with a node of each op."""
    hybrids = {
        "lightning": shallow("minimax", 2),
        "mamba2": shallow("nemotron_h"),
        "selective_scan": shallow("jamba", 1),
    }
    return {"gated_delta": gated, "short_conv": gated, **hybrids}


def values() -> dict[str, tuple[Op, Attribute, Value]]:
    """Every value that says something else than the default."""
    every: list[tuple[Op, Attribute, Value]] = []
    for op in (op for op in OPS.values() if op.tokens.state is not None):
        for attribute in op.attributes:
            default = DTYPES[op.name] if attribute.default == MODEL else attribute.default
            number = NUMBERS.get(f"{op.name}:{attribute.name}")
            orders = ORDERS.get(f"{op.name}:{attribute.name}", ())
            words = (*attribute.values, *(() if number is None else (number,)), *orders)
            every += [(op, attribute, value) for value in words if value not in (default, attribute.default)]
    return {f"{op.name}:{attribute.name}={value}": (op, attribute, value) for op, attribute, value in every}


def reported(
    folder: Path,
    checkpoint: Path,
    op: str,
    reference: dict[str, Any],
    candidate: dict[str, Any],
    steps: dict[str, Any] = STEPS,
) -> Report:
    ids, node, dtype = random_tokens(3, 24), NODES[op], DTYPES[op]
    ids[1:, :8] = ids[0, :8].clone()
    sides = (
        {**steps, "dtype": dtype, "set": {f"{node}:{name}": to for name, to in of.items()}}
        for of in (reference, candidate)
    )
    recipe = write_recipe(folder, checkpoint, {"input_ids": ids}, *sides)
    return bisect(recipe, device="cpu", opener=opened, options=Options(floor=False))


def test_every_whole_number_and_order_is_listed() -> None:
    with_state = [op for op in OPS.values() if op.tokens.state is not None]
    assert ORDERS.keys() == {f"{o.name}:{a.name}" for o in with_state for a in o.attributes if a.order}
    assert NUMBERS.keys() == {f"{o.name}:{a.name}" for o in with_state for a in o.attributes if a.least is not None}


@pytest.mark.parametrize("label", values())
def test_a_planted_value_is_found(label: str, tmp_path: Path, of_op: dict[str, Path]) -> None:
    op, attribute, value = values()[label]
    background = WIDE.get(op.name, {}) | OF_LABEL.get(f"{op.name}:{attribute.name}", {})
    reference = {name: to for name, to in background.items() if name != attribute.name}
    node = NODES[op.name]
    steps = {} if f"{op.name}:{attribute.name}" in AT_ONCE else STEPS
    candidate = {**reference, attribute.name: value}
    report = reported(tmp_path, of_op[op.name], op.name, reference, candidate, steps)
    (toggle,) = report.toggles
    assert toggle.name == f"{node}:{attribute.name}"
    assert toggle.had_no_effect == (label in SAME)
    if label in SAME:
        assert not report.roots
        return
    assert toggle.restores_all
    (root,) = report.roots
    assert (root.node, [choice.attribute for choice in root.choices]) == (node, [attribute.name])


@pytest.mark.parametrize("op", NODES)
def test_a_state_in_another_dtype_differs_behind_borders_alone(op: str, tmp_path: Path, of_op: dict[str, Path]) -> None:
    """In a first step nothing is taken over; a sequence that begins with a prefix takes over what the cache has."""
    report = reported(tmp_path, of_op[op], op, {}, {"step_state": "fp16"})
    (root,) = report.roots
    places = {(place.sequence, place.position) for place in root.places}
    assert places
    assert not [place for place in places if place[1] < (10 if place[0] == 0 else 8)]


@pytest.mark.parametrize("op", NODES)
def test_a_reset_that_a_server_left_out_is_found(op: str, tmp_path: Path, of_op: dict[str, Path]) -> None:
    """Of five requests two run at once; the first two get slots that nobody had."""
    steps: dict[str, Any] = {
        "schedule": {"rule": "vllm-v1", "sequences": 2, "prefill": {"chunk": 10}, "decode": {"from": 12}}
    }
    node = NODES[op]
    steps |= {"set": {f"{node}:start": "state"}} if op == "selective_scan" else {}
    fault = {"name": "state-unreset", "nodes": node}
    recipe = write_recipe(tmp_path, of_op[op], {"input_ids": random_tokens(5, 16)}, steps, {**steps, "faults": [fault]})
    report = bisect(recipe, device="cpu", opener=opened, options=Options(floor=False))
    (root,) = report.roots
    assert (root.node, root.sequences) == (node, 3)
    assert {place.sequence for place in root.places} <= {2, 3, 4}
    (toggle,) = report.toggles
    assert toggle.restores_all
    assert report.summary.blame == f"{toggle.name} makes all of it"


@pytest.mark.parametrize("op", NODES)
def test_a_state_that_leaks_over_the_borders_of_a_pack_is_found(
    op: str, tmp_path: Path, of_op: dict[str, Path]
) -> None:
    """Of three sequences in one pack all but the first differ, from their first tokens on."""
    steps = {"schedule": {"pack": {"length": 40}}}
    node = NODES[op]
    fault = {"name": "state-unreset", "nodes": node}
    recipe = write_recipe(tmp_path, of_op[op], {"input_ids": random_tokens(3, 12)}, steps, {**steps, "faults": [fault]})
    report = bisect(recipe, device="cpu", opener=opened, options=Options(floor=False))
    (root,) = report.roots
    assert (root.node, root.sequences) == (node, 2)
    places = {(place.sequence, place.position) for place in root.places}
    assert (1, 0) in places
    assert not [place for place in places if place[0] == 0]
    assert report.summary.blame == f"{report.toggles[0].name} makes all of it"


def test_requests_that_all_run_at_once_have_slots_of_their_own(tmp_path: Path, gated: Path) -> None:
    steps = {"schedule": {"rule": "vllm-v1", "decode": {"from": 12}}}
    candidate = {**steps, "faults": [{"name": "state-unreset"}]}
    recipe = write_recipe(tmp_path, gated, {"input_ids": random_tokens(5, 16)}, steps, candidate)
    report = bisect(recipe, device="cpu", opener=opened, options=Options(floor=False))
    assert [toggle.had_no_effect for toggle in report.toggles] == [True]
