"""Mixtures in batches: what each gives in a batch is what it gives alone, and none is evaluated twice."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observe import observe
from moeparity.bisection.observers import Logits
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.engine import passes
from moeparity.engine.footprint import estimate
from moeparity.engine.lockstep import run
from moeparity.engine.routes import NATURAL, ORDER, REPLAYED, Routes
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.errors import MoeparityError
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.ops.attribute import RefusedError
from moeparity.plan.sides import REFERENCE, micro_batches
from moeparity.plan.toggles import mixed
from moeparity.search.memo import Mixture
from tests.planted.places import random_tokens, write_recipe

OWN = {
    "layers[*].moe.combine:accumulate": "fp32",
    "layers[1].moe.gate:output": "fp32",
    "layers[*].moe.experts:activation": "fp32",
    "layers[0].attention.rope:products": "fp32",
}


def prepared(folder: Path, checkpoint: Path, *, options: Options | None = None, **more: Any) -> Study:
    candidate = {"set": more.pop("own", OWN), "micro_batch": more.pop("micro_batch", 5)}
    reference = {"micro_batch": 5}
    tokens = random_tokens(more.pop("sequences", 5), 9)
    path = write_recipe(folder, checkpoint, {"input_ids": tokens}, reference, candidate, **more)
    return prepare(path, device="cpu", options=options)


def subsets(study: Study) -> list[Mixture]:
    names = [toggle.name for toggle in study.toggles]
    return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]


def test_every_mixture_in_one_pass_is_what_it_is_alone(tmp_path: Path, qwen3_moe: Path) -> None:
    study = prepared(tmp_path, qwen3_moe, micro_batch=2)
    together = Mixtures(study)
    mixtures = subsets(study)
    assert len(mixtures) == 32, "four choices and the micro-batch"
    outcomes = together(mixtures)
    assert (list(outcomes), together.passes) == (mixtures, 1)
    for mixture in mixtures[::5]:
        alone = Mixtures(study)
        assert alone([mixture])[mixture] == outcomes[mixture]
    empty, whole = outcomes[mixtures[0]], outcomes[mixtures[-1]]
    assert (empty.value, empty.k3, empty.upper, empty.exact) == (0.0, 0.0, 0.0, True)
    assert whole.value > 0
    assert not whole.exact


@pytest.mark.parametrize("reduce", ["token", "sequence"])
def test_the_outcome_is_the_mixtures_divergence(tmp_path: Path, qwen3_moe: Path, reduce: str) -> None:
    study = prepared(tmp_path, qwen3_moe, reduce=reduce, sequences=25)
    moved = list(study.toggles[:2])
    mixture = frozenset(toggle.name for toggle in moved)
    outcome = Mixtures(study)([mixture])[mixture]
    side = mixed(study.reference, moved, study.candidate)
    logits = Logits(
        "lm_head",
        REFERENCE,
        ("own",),
        study.tokens.input_ids,
        study.tokens.loss_mask,
        "candidate",
        study.first_occurrences,
    )
    walkers = [
        Walker(name=name, plan=s.plan, schedule=micro_batches(s))
        for name, s in ((REFERENCE, study.reference), ("own", side))
    ]
    run(walkers, study.model.weights, study.tokens.input_ids, [logits])
    sums = logits.sums("own")
    assert outcome.sums == tuple(sums.kl_candidate_reference.tolist())
    assert outcome.tokens == tuple(sums.tokens.tolist()) == (8.0,) * 25
    assert outcome.value == float(sums.kl_candidate_reference.sum()) / 200
    assert outcome.k3 == float(sums.k3.sum()) / 200
    mean = token_mean if reduce == "token" else sequence_mean
    assert outcome.upper == mean(sums.k3, sums.tokens).high > outcome.k3


def test_with_too_few_sequences_for_a_verdict_only_equal_bits_are_under_a_gate(tmp_path: Path, qwen3_moe: Path) -> None:
    study = prepared(tmp_path, qwen3_moe, sequences=24, micro_batch=4)
    names = [toggle.name for toggle in study.toggles]
    outcomes = Mixtures(study)([frozenset(), frozenset({"micro_batch"}), frozenset(names)])
    assert [(outcomes[c].upper, outcomes[c].exact) for c in outcomes] == [(0.0, True), (0.0, True), (math.inf, False)]


def test_nothing_is_evaluated_twice(tmp_path: Path, qwen3_moe: Path) -> None:
    oracle, mixtures = Mixtures(study := prepared(tmp_path, qwen3_moe)), subsets(study)
    first = oracle(mixtures[:6])
    spent = oracle.counts.evaluations.total()
    assert oracle([*mixtures[:6], *mixtures[:6]]) == first
    assert (oracle.passes, oracle.counts.evaluations.total()) == (1, spent)
    oracle(mixtures[:7])
    assert oracle.passes == 2


def test_what_a_bisection_saw_is_not_evaluated_again(tmp_path: Path, qwen3_moe: Path) -> None:
    study = prepared(tmp_path, qwen3_moe)
    fresh, knowing = Mixtures(study), Mixtures(study)
    knowing.learn(observe(study, study.toggles))
    names = [toggle.name for toggle in study.toggles]
    mixtures = [frozenset({name}) for name in names] + [frozenset(names) - {name} for name in names]
    learned = knowing(mixtures).items()
    assert {key: replace(out, unchanged=None) if out else None for key, out in learned} == fresh(mixtures)
    # Whether the candidate's bits are left as they are is what only a bisection looks at.
    assert [out.unchanged for key, out in learned if out and len(key) == len(names) - 1] == [False] * len(names)
    assert (knowing.passes, fresh.passes) == (0, 1)


def test_memory_decides_how_many_go_together(tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepared(tmp_path, qwen3_moe)
    mixtures = subsets(study)
    whole = Mixtures(study)
    expected = whole(mixtures)
    sides = [mixed(study.reference, [t for t in study.toggles if t.name in c], study.candidate) for c in mixtures]
    walkers = [walker(study, i, side) for i, side in enumerate([study.reference, *sides])]
    few = estimate(walkers[:5], study.model.weights, *study.tokens.input_ids.shape).total
    assert few < estimate(walkers, study.model.weights, *study.tokens.input_ids.shape).total
    limited = Mixtures(prepared(tmp_path, qwen3_moe, options=Options(memory_limit=few)))
    batches: list[int] = []

    def counting(walkers: list[Walker], *args: Any, **more: Any) -> Any:
        batches.append(len(walkers) - 1)
        return run(walkers, *args, **more)

    monkeypatch.setattr(passes, "run", counting)
    assert limited(mixtures) == expected
    assert batches[0] == 4, "what fits, and not one less"
    assert sum(batches) == len(mixtures)


def test_too_little_memory_for_one_is_refused(tmp_path: Path, qwen3_moe: Path) -> None:
    study = prepared(tmp_path, qwen3_moe, options=Options(memory_limit=1000.0))
    with pytest.raises(MoeparityError, match="are allowed by --memory-limit"):
        Mixtures(study)(subsets(study))


def test_a_mixture_that_an_op_refuses_is_none(tmp_path: Path, qwen3_moe_even: Path) -> None:
    # Rows of 36 elements are whole 16 bytes in fp32 only, and the grouped GEMM takes no others.
    settings = {"layers[*].moe.experts:implementation": "grouped", "layers[*].moe.experts:projections": "fp32"}
    settings |= {"layers[*].moe.experts:product": "fp32", "lm_head:output": "fp32"}
    study = prepared(tmp_path, qwen3_moe_even, own=settings)
    outcomes = Mixtures(study)(subsets(study))
    refused = [mixture for mixture, outcome in outcomes.items() if outcome is None]
    grouped = next(t.name for t in study.toggles if "implementation" in t.name)
    assert refused
    assert all(grouped in mixture for mixture in refused)
    assert outcomes[frozenset(t.name for t in study.toggles)] is not None


def test_a_mixture_that_a_kernel_refuses_in_the_pass_leaves_the_others(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = prepared(tmp_path, qwen3_moe)
    mixtures = subsets(study)
    bad = study.toggles[1]

    def refusing(walkers: list[Walker], *args: Any, **more: Any) -> Any:
        for each in walkers:
            if each.name != REFERENCE and all(
                each.plan.settings[place].value == study.candidate.plan.settings[place].value
                for member in bad.members
                for place in member.places
            ):
                raise WalkersRefusedError([each.name], RefusedError("output", "refused"))
        return run(walkers, *args, **more)

    expected = Mixtures(study)(mixtures)
    monkeypatch.setattr(passes, "run", refusing)
    evaluate = Mixtures(study)
    assert evaluate(mixtures) == {c: None if bad.name in c else expected[c] for c in mixtures}
    assert evaluate.refused == dict.fromkeys((c for c in mixtures if bad.name in c), "output: refused")


def test_a_name_that_is_no_toggle(tmp_path: Path, qwen3_moe: Path) -> None:
    with pytest.raises(KeyError, match="no toggles of this study: \\['nothing'\\]"):
        Mixtures(prepared(tmp_path, qwen3_moe))([frozenset({"nothing"})])


def test_forced_routes_take_the_routers_part_away(tmp_path: Path, qwen3_moe: Path) -> None:
    settings = {"layers[*].moe.router:scores": "bf16", "layers[1].moe.combine:accumulate": "fp32"}
    study = prepared(tmp_path, qwen3_moe, own=settings)
    router, combine = (next(t.name for t in study.toggles if part in t.name) for part in ("router", "combine"))
    natural, forced = (
        Mixtures(study, routes=routes)([frozenset({router}), frozenset({combine})]) for routes in (NATURAL, ORDER)
    )
    assert natural[frozenset({router})].value > 0
    assert (forced[frozenset({router})].value, forced[frozenset({combine})].value > 0) == (0.0, True)
    assert forced[frozenset({router})].exact, "what its router computes, nobody is handed"


@pytest.mark.parametrize("routes", [NATURAL, *REPLAYED])
def test_one_in_and_leave_one_out_are_one_pass(tmp_path: Path, qwen3_moe: Path, routes: Routes) -> None:
    """Weights are read once, and work that mixtures share is done once (`benchmarks/attribution.py` counts it)."""
    study = prepared(tmp_path, qwen3_moe)
    names = [toggle.name for toggle in study.toggles]
    oracle, single = Mixtures(study, routes=routes), Mixtures(study)
    oracle([frozenset({name}) for name in names] + [frozenset(names) - {name} for name in names])
    single([frozenset()])
    assert oracle.passes == 1
    assert oracle.counts.bytes_read == single.counts.bytes_read > 0
    assert oracle.counts.evaluations.total() < 0.8 * (1 + 2 * len(names)) * len(study.model.graph.nodes)
