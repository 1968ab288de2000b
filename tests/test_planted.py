"""Every value of every attribute, planted alone on one node, is found: the node, the attribute, both values."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from moeparity import plan
from moeparity.attribution.toggles import toggles
from moeparity.graph.address import file_key
from moeparity.model import Model, forward, open_model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import MODEL
from moeparity.numerics.orders import parse
from moeparity.ops.declaration import Value
from moeparity.ops.registry import OPS
from moeparity.plan import prepare
from moeparity.report.model import Report
from tests.planted import (
    MODEL_OF,
    NUMBERS,
    ORDERS,
    REFERENCE_VALUE,
    SEQUENCES,
    SHORT,
    TOKENS,
    Bisection,
    Planted,
    Sides,
    all_values,
    bisected,
    plant,
    random_tokens,
    write_recipe,
)

HOST_DEPENDENT = {
    "experts:implementation": "torch's grouped GEMM on CPU is one GEMM per expert, on some CPUs the one `loop` calls",
    "experts:gate_up": "whether one GEMM of width 2I and two of width I agree is up to the CPU's GEMM kernels",
    "attention:kv_layout": "whether a strided and a contiguous operand agree is up to the CPU's GEMM kernels",
}
"""Attributes whose effect is the processor's business: two separate forwards say whether there is one."""

VALUES = {planted.label: planted for planted in all_values()}


@lru_cache(maxsize=4)
def opened(folder: Path, *, device: str, **_: None) -> Model:
    return open_model(folder, device=device, residency="resident")


@pytest.fixture(autouse=True)
def _models_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "open_model", opened)


def recipe_with(planted: Planted, folder: Path, checkpoint: Path) -> tuple[Path, Sides]:
    sides = plant(planted, opened(checkpoint, device="cpu"))
    sequences, tokens, micro_batch = SHORT.get(planted.place, (SEQUENCES, TOKENS, SEQUENCES))
    reference, candidate = ({"set": values, "micro_batch": micro_batch} for values in sides.sets)
    ids = {"input_ids": random_tokens(sequences, tokens)}
    return write_recipe(folder, checkpoint, ids, reference, candidate), sides


@pytest.mark.parametrize("label", VALUES)
def test_planted_value_is_found(request: pytest.FixtureRequest, tmp_path: Path, label: str) -> None:
    planted = VALUES[label]
    path, sides = recipe_with(planted, tmp_path, request.getfixturevalue(planted.model))
    found = bisected(path)
    assert [(t.nodes, t.members[0].attribute) for t in found.plan.toggles] == [((sides.node,), planted.attribute.name)]
    if planted.place in HOST_DEPENDENT and not differs_here(found, sides):
        assert_without_effect(found.report)
    else:
        assert_found(found, planted, sides)


def differs_here(found: Bisection, sides: Sides) -> bool:
    """What two separate forwards say of the planted node."""
    ids, size = found.plan.tokens.input_ids, found.plan.candidate.micro_batch
    one, two = (
        forward(found.plan.model, ids, settings=values, micro_batch=size, save=[sides.node])[file_key(sides.node)]
        for values in sides.sets
    )
    return not same_bits(one, two)


def assert_found(found: Bisection, planted: Planted, sides: Sides) -> None:
    root, *later = found.report.roots
    assert (root.node, root.op) == (sides.node, planted.op.name)
    assert [(choice.attribute, choice.reference, choice.candidate) for choice in root.choices] == [
        (planted.attribute.name, shown(sides.reference), shown(sides.candidate))
    ]
    assert not later, "one planted node is the only root"
    (toggle,) = found.report.toggles
    assert (toggle.reference, toggle.candidate) == (shown(sides.reference), shown(sides.candidate))
    assert not toggle.had_no_effect
    assert toggle.alone.changed_nodes == toggle.restored.changed_nodes > 0
    assert (toggle.restored.kl, toggle.restored.k3, toggle.restored.flipped_routes) == (0.0, 0.0, 0.0)
    assert toggle.alone.kl == found.report.metrics.kl
    assert toggle.restores_all, "the restored trial has the reference's bits at every node"


def assert_without_effect(report: Report) -> None:
    assert [toggle.had_no_effect for toggle in report.toggles] == [True]
    assert report.reading == (f"{report.toggles[0].name} had no effect: no bit changed at any node.",)
    assert (report.roots, report.verdict.status) == ((), "pass")


def shown(value: Value) -> str:
    """A value as a report prints it, in the fixtures' dtype."""
    return "model (bf16)" if value == MODEL else str(value)


def test_the_tables_name_values_that_exist() -> None:
    places = {planted.place for planted in VALUES.values()}
    assert VALUES.keys() >= REFERENCE_VALUE.keys()
    assert places >= SHORT.keys() | NUMBERS.keys() | HOST_DEPENDENT.keys()
    assert places | OPS.keys() >= MODEL_OF.keys()


def test_every_number_is_listed() -> None:
    assert NUMBERS.keys() == {f"{o.name}:{a.name}" for o in OPS.values() for a in o.attributes if a.number}


def test_orders_are_listed_as_they_are_printed() -> None:
    assert ORDERS.keys() == {f"{o.name}:{a.name}" for o in OPS.values() for a in o.attributes if a.order}
    assert all(str(parse(order)) == order for listed in ORDERS.values() for order in listed)


SITES = [p for p in VALUES.values() if p.attribute.kind == "rounding" and p.value == MODEL]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.place)
def test_model_is_the_dtype_of_the_variant(request: pytest.FixtureRequest, tmp_path: Path, site: Planted) -> None:
    """`model` and the variant's own dtype are one value: no toggle."""
    checkpoint = request.getfixturevalue(site.model)
    node = plant(site, opened(checkpoint, device="cpu")).node
    sides = ({"set": {f"{node}:{site.attribute.name}": value}} for value in (MODEL, "bf16"))
    ready = prepare(write_recipe(tmp_path, checkpoint, {"input_ids": random_tokens()}, *sides), device="cpu")
    assert toggles(ready.reference, ready.candidate) == []
