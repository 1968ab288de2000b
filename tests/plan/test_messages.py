"""Rules by a step's message: by rows on one model, in its dtype, over its ranks; both sides of every stated bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError, Where
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.messages import RowMessage
from moeparity.plan.schedule.cases import Sizes
from moeparity.plan.schedule.steps import Phase
from moeparity.plan.sides import cases_of
from moeparity.plan.spec.variant_schema import Placement, Variant
from moeparity.profiles.compare import architectures

HERE = Where(Path("message"))
OF = expand(Config(architectures()["mixtral"]))
HIDDEN = 4096
COLLECTIVE = "layers[*].moe.reduce:collective"
RING = "nccl.ring"


def plan(address: str, *, dtype: str = "bf16", tensor: int = 4, **settings: str) -> Plan:
    """Mixtral under hf-eager with one line that goes by messages, and further choices of its output projection."""
    values = {f"layers[*].attention.o_proj:{name}": value for name, value in settings.items()} | {address: RING}
    placed = placement_rules(Placement(tensor=tensor), HERE)
    phases: tuple[Phase, ...] = ("prefill", "decode")
    return bind(OF, load_profile("hf-eager", HERE), dtype, overrides(values, HERE), placement=placed, phases=phases)


def is_taken(bound: Plan, rows: int, phase: Phase = "prefill") -> bool:
    at = bound.at(Sizes(phase, rows, longest=rows, keys=rows, queries=rows))
    return at.settings["layers[0].moe.reduce", "collective"].value == RING


@pytest.mark.parametrize(("dtype", "row_bytes"), [("bf16", 2 * HIDDEN), ("fp32", 4 * HIDDEN)])
def test_bytes_are_rows_of_the_models_width_in_the_sides_dtype(dtype: str, row_bytes: int) -> None:
    bound = plan(f"{COLLECTIVE}@prefill[bytes {3 * row_bytes}:{7 * row_bytes}]", dtype=dtype)
    assert [rows for rows in range(1, 12) if is_taken(bound, rows)] == [3, 4, 5, 6]
    # A message that is a byte short of three rows has two.
    bound = plan(f"{COLLECTIVE}@prefill[bytes {3 * row_bytes - 1}:{7 * row_bytes + 1}]", dtype=dtype)
    assert [rows for rows in range(1, 12) if is_taken(bound, rows)] == [3, 4, 5, 6, 7]
    assert not any(is_taken(bound, rows, "decode") for rows in range(1, 12))


@pytest.mark.parametrize(("tensor", "holds"), [(2, False), (4, True), (8, False)])
def test_ranks_are_those_of_the_placement(tensor: int, holds: bool) -> None:
    address = f"{COLLECTIVE}@prefill[ranks 4:5]"
    if holds:
        assert is_taken(plan(address, tensor=tensor), 5)
        return
    with pytest.raises(SpecError, match=r"is set for steps of prefill\[ranks 4:5\]"):
        plan(address, tensor=tensor)


def test_on_one_rank_there_is_no_message() -> None:
    with pytest.raises(SpecError, match=r"is set for steps of prefill\[bytes 1:\]"):
        plan(f"{COLLECTIVE}@prefill[bytes 1:]", tensor=1)


def test_rows_and_bytes_of_one_rule_hold_both() -> None:
    bound = plan(f"{COLLECTIVE}@prefill[rows 2:6, bytes {4 * 2 * HIDDEN}:]")
    assert [rows for rows in range(1, 9) if is_taken(bound, rows)] == [4, 5]


def test_partial_sums_of_another_size_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"depends on the bytes of a message in bf16, and the partial sums at layers\[0\]"
    ):
        plan(f"{COLLECTIVE}@prefill[bytes 4096:]", partial="fp32")


def test_sides_of_other_dtypes_and_ranks_are_cut_alike() -> None:
    profile = load_profile("vllm-allreduce-norm", HERE)
    variants = [
        Variant.model_validate({"profile": profile.name, "placement": {"tensor": ranks}, "dtype": dtype})
        for ranks, dtype in ((4, "bf16"), (8, "fp32"))
    ]
    cases = cases_of(OF, "bf16", ("prefill",), variants, [profile, profile], HERE)
    plans = [
        bind(OF, profile, str(v.dtype), placement=placement_rules(v.placement, HERE), phases=cases) for v in variants
    ]
    assert [side.phases for side in plans] == [cases, cases]


MIB = 1 << 20
LIMITS = {
    ("vllm-allreduce-norm", 2): ((MIB // 2, "one"), (64 * MIB, "two")),
    ("vllm-allreduce-norm", 4): ((MIB // 4, "one"), (2 * MIB, "two")),
    ("vllm-allreduce-norm", 8): ((MIB // 8, "one"), (MIB // 2, "two")),
    ("vllm-allreduce-norm-trtllm", 2): ((32 * MIB, "one"), (64 * MIB, "two")),
    ("vllm-allreduce-norm-trtllm", 4): ((2 * MIB, "one"),),
    ("vllm-allreduce-norm-trtllm", 8): ((MIB // 2, "one"),),
    ("sglang-allreduce-norm", 4): ((8 * MIB, "one"),),
    ("sglang-allreduce-norm", 8): ((42 * MIB // 16, "one"),),
}
"""Bytes up to which a profile takes one-shot, then two-shot; of the sources that the profiles name."""
NORM = "layers[0].moe.norm"
ORDERS = {
    "vllm-allreduce-norm": {"one": "flashinfer.mnnvl_rms_norm", "two": "flashinfer.mnnvl_rms_norm"},
    "vllm-allreduce-norm-trtllm": {"one": "trtllm.all_reduce_rms_norm", "two": "trtllm.two_shot_rms_norm"},
    "sglang-allreduce-norm": {"one": "trtllm.all_reduce_rms_norm", "two": "trtllm.two_shot_rms_norm"},
}


@pytest.mark.parametrize(("profile", "ranks"), LIMITS)
def test_a_fused_norm_follows_the_bytes_of_its_step(profile: str, ranks: int) -> None:
    base = profile.partition("-")[0]
    bound, plain = (
        bind(OF, load_profile(name, HERE), "bf16", placement=placement_rules(Placement(tensor=ranks), HERE))
        for name in (profile, base)
    )
    row = 2 * HIDDEN

    def norm(plan_there: Plan, rows: int) -> dict[str, object]:
        at = plan_there.at(Sizes("forward", rows, longest=rows, keys=rows, queries=rows))
        return {name: value.value for (node, name), value in at.settings.items() if node == NORM}

    first = 1
    for most, shot in LIMITS[profile, ranks]:
        last = min(most // row, 2048) if base == "sglang" else most // row
        assert norm(bound, first) == norm(bound, last)
        choices = norm(bound, last)
        assert choices["order"] == ORDERS[profile][shot]
        if profile == "vllm-allreduce-norm":
            assert (choices["square"], choices["association"] == "weight_x_first") == (
                ("model", False) if shot == "one" else ("fp32", True)
            )
        assert norm(bound, last + 1) != choices
        first = last + 1
    rows = 2049 if base == "sglang" else first
    assert norm(bound, rows) == norm(plain, rows), "larger steps are the engine's own"


@pytest.mark.parametrize("profile", ORDERS)
def test_on_one_rank_no_norm_is_fused(profile: str) -> None:
    fused, plain = (bind(OF, load_profile(name, HERE), "bf16") for name in (profile, profile.partition("-")[0]))
    key = (NORM, "order")
    assert fused.settings[key].value == plain.settings[key].value
    assert RowMessage.of(OF, "bf16", ()).ranks == 1


@pytest.mark.parametrize(
    ("placement", "attention", "moe"),
    [
        ({"tensor": 2}, "nccl.ring", "nccl.ring"),
        ({"tensor": 4}, "nccl.tree", "nccl.tree"),
        ({"tensor": 2, "attention": 2}, "nccl.ring", "nccl.tree"),
        ({"tensor": 2, "attention": 2, "expert": 4, "gathered": "experts"}, "nccl.ring", "nccl.tree"),
        ({"tensor": 1, "attention": 4}, "gloo.all_reduce", "nccl.tree"),
    ],
)
def test_a_sum_of_groups_that_attend_apart_is_over_their_own_ranks(
    placement: dict[str, Any], attention: str, moe: str
) -> None:
    """By ranks, and so by whose rows a fused all-reduce adds: of attention each group's own, of experts all."""
    rules = placement_rules(Placement.model_validate(placement), HERE)
    phases: tuple[Phase, ...] = ("prefill",)
    by_ranks = [
        rule
        for ranks, name in ((2, "nccl.ring"), (4, "nccl.tree"))
        for rule in overrides({f"**.reduce:collective@prefill[ranks {ranks}:{ranks + 1}]": name}, HERE)
    ]
    profile = load_profile("hf-eager", HERE)
    profile = replace(profile, layers=(*profile.layers, tuple(by_ranks)))
    bound = bind(OF, profile, "bf16", placement=rules, phases=phases)
    names = [bound.settings[f"layers[0].{block}.reduce", "collective"].value for block in ("attention", "moe")]
    assert names == [attention, moe]
