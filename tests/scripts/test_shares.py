"""Shares of choices that rest on a run: what is counted, and what a run could be claimed for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from moeparity.errors import Where
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.profiles import fidelity
from moeparity.profiles.fidelity import Compiled, Proof
from scripts.pages import reasons, shares
from scripts.pages.shares import choices

PTX = Compiled(compiler="CUDA 13.5.37", architecture="sm_90")


def test_every_choice_is_counted_once_at_its_lowest_level() -> None:
    choices_found = choices("vllm", "qwen3_moe")
    keys = Counter((choice.node, choice.attribute) for choice in choices_found)
    assert keys.most_common(1)[0][1] == 1
    stands = {(choice.op, choice.attribute): choice for choice in choices_found}
    assert stands["linear", "order"].level == "verified: vectors"
    assert stands["lm_head", "blocks"].level == "unknown"
    assert {"combine", "add"} <= {op for op, _ in stands}
    assert ("add", "output->rms_norm") in stands, "what the profile sets on edges"
    assert ("router", "tie_break") not in stands, "semantics is no numerics"


def test_a_run_of_the_engines_own_kernel_may_be_claimed_and_another_engines_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = Proof(against="vLLM 0.33.0 moe_sum", device="x", torch="2", date="d", tests=(), how="ptx", compiled=PTX)
    key = ("attention", "own_keys", "stored")
    for against, names in (("vLLM 0.33.0 moe_sum", ("vLLM 0.33.0 moe_sum",)), ("transformers 5", ())):
        proofs = {key: (replace(proof, against=against),)}
        monkeypatch.setattr(fidelity, "verified", lambda proofs=proofs: proofs)
        (choice,) = [
            choice_there
            for choice_there in choices("vllm", "qwen3_moe")
            if (choice_there.op, choice_there.attribute) == key[:2]
        ]
        assert (choice.level, choice.claimable) == ("read", names)


def test_a_rule_that_claims_a_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def claimed(name: str, where: Where) -> Profile:
        loaded = load_profile(name, where)
        layers = (
            tuple(
                replace(rule, evidence=f"verified: ptx: {rule.source}") if rule.op == "combine" else rule for rule in of
            )
            for of in loaded.layers
        )
        return replace(loaded, layers=tuple(layers))

    before = {
        (choice.node, choice.attribute)
        for choice in choices("vllm", "qwen3_moe")
        if choice.by_run and choice.op != "combine"
    }
    monkeypatch.setattr(shares, "load_profile", claimed)
    by_run = [choice for choice in choices("vllm", "qwen3_moe") if choice.by_run]
    assert {(choice.node, choice.attribute) for choice in by_run if choice.op != "combine"} == before
    (order,) = [
        choice_there for choice_there in by_run if (choice_there.op, choice_there.attribute) == ("combine", "order")
    ]
    assert order.level == "verified: ptx"
    assert order.source.startswith("vLLM 0.33.0, csrc/moe/moe_align_sum_kernels.cu moe_sum")


def test_every_choice_without_a_run_has_a_reason_that_is_counted() -> None:
    """Of vLLM's those inside FlashAttention and cuBLAS, and the rest, each in one column."""
    unproved = [choice for choice in choices("vllm", "qwen3_moe") if not choice.by_run]
    row = shares._without("vllm", "qwen3_moe", unproved)
    gemm, attention, opaque, stated, silent = (int(cell) for cell in row.split("|")[3:-1])
    assert gemm + attention + opaque + stated + silent == len(unproved)
    inside = [choice for choice in unproved if choice.op == "attention" and choice.is_inside]
    assert attention == len(inside) > 0
    assert gemm > 0
    assert stated + opaque < sum(choice.level != "unknown" for choice in unproved)


@pytest.mark.parametrize(
    ("profile", "model"), [(profile, model) for profile, of in shares.MODELS.items() for model in of]
)
def test_most_of_what_is_stated_rests_on_a_run(profile: str, model: str) -> None:
    """Attributes that are stated nowhere are not among them: what a profile does not say it cannot get wrong."""
    stated = [choice for choice in choices(profile, model) if choice.level != "unknown"]
    assert sum(choice.by_run for choice in stated) >= 0.6 * len(stated)


@pytest.mark.parametrize(
    ("profile", "model"),
    [
        (profile, model)
        for profile, of in shares.MODELS.items()
        for model in of
        if profile.startswith(("vllm", "sglang"))
    ],
)
def test_three_quarters_of_all_choices_rest_on_a_run(profile: str, model: str) -> None:
    """Among all are those that no file states."""
    of_model = choices(profile, model)
    assert sum(choice.by_run for choice in of_model) >= 0.75 * len(of_model)


@pytest.mark.parametrize(
    ("profile", "model"), [(profile, model) for profile, of in shares.MODELS.items() for model in of]
)
def test_nothing_inside_a_gemm_or_attention_is_without_a_reason(profile: str, model: str) -> None:
    inside = [choice for choice in choices(profile, model) if choice.is_inside and not choice.by_run]
    assert inside
    assert {reasons.reason(profile, choice) for choice in inside} <= reasons.SAYS.keys()
    rows = [row for row in reasons.table((profile, choice) for choice in inside) if row.startswith("| ")]
    for choice in inside:
        (row,) = [row for row in rows if f"`{choice.op}:{choice.attribute}`" in row]
        assert reasons.SAYS[reasons.reason(profile, choice)] in row


def test_a_choice_that_nobody_explained_is_no_reasons() -> None:
    strange = replace(next(c for c in choices("vllm", "qwen3_moe") if c.op == "linear"), attribute="promotion")
    with pytest.raises(KeyError):
        reasons.reason("vllm", strange)
