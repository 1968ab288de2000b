"""Shares of choices that rest on a run: what is counted, and what a run could be claimed for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from moeparity.errors import Where
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.profiles import fidelity
from moeparity.profiles.fidelity import Compiled, Proof
from scripts.pages import shares
from scripts.pages.shares import choices

PTX = Compiled(compiler="CUDA 13.5.37", architecture="sm_90")


def test_every_choice_is_counted_once_at_its_lowest_level() -> None:
    found = choices("vllm", "qwen3_moe")
    keys = Counter((choice.node, choice.attribute) for choice in found)
    assert keys.most_common(1)[0][1] == 1
    stands = {(choice.op, choice.attribute): choice for choice in found}
    assert stands["combine", "order"].level == "read"
    assert stands["add", "output->rms_norm"].level == "inferred"
    assert stands["linear", "order"].level == "unknown"
    assert ("router", "tie_break") not in stands, "semantics is no numerics"


def test_a_run_of_the_engines_own_kernel_may_be_claimed_and_another_engines_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = Proof(against="vLLM 0.33.0 moe_sum", device="x", torch="2", date="d", tests=(), how="ptx", compiled=PTX)
    key = ("combine", "order", "sequential")
    for against, names in (("vLLM 0.33.0 moe_sum", ("vLLM 0.33.0 moe_sum",)), ("transformers 5", ())):
        proofs = {key: (replace(proof, against=against),)}
        monkeypatch.setattr(fidelity, "verified", lambda proofs=proofs: proofs)
        (choice,) = [one for one in choices("vllm", "qwen3_moe") if (one.op, one.attribute) == key[:2]]
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

    before = sum(choice.by_run for choice in choices("vllm", "qwen3_moe"))
    monkeypatch.setattr(shares, "load_profile", claimed)
    found = choices("vllm", "qwen3_moe")
    by_run = [choice for choice in found if choice.by_run]
    assert {choice.op for choice in by_run} == {"combine"}
    assert len(by_run) > before == 0
    assert {choice.source for choice in by_run} == {"vLLM 0.33.0, csrc/moe/moe_align_sum_kernels.cu moe_sum"}
