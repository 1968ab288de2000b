"""Every metric as a gate: which are taken, what they are at parity, and their value from sums over sequences."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from moeparity.errors import SpecError
from moeparity.metrics.gated import needed
from moeparity.metrics.gating import declared, gated, gated_in_recipes, gated_name, parity, refusal
from moeparity.metrics.quantities import SHARES
from moeparity.metrics.registry import METRICS
from moeparity.metrics.tokens import SequenceSums, token_metrics
from moeparity.metrics.verdict import Gate
from moeparity.plan.spec import reader
from tests.metrics.made import chunk, estimates

SEQUENCES, TOKENS, WORDS = 30, 12, 17


def both_sides(noise: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of both sides, ids and loss mask: rows of other lengths, one of them without a scored token."""
    generator = torch.Generator().manual_seed(3)
    reference = 2 * torch.randn(SEQUENCES, TOKENS, WORDS, dtype=torch.float64, generator=generator)
    candidate = reference + noise * torch.randn(reference.shape, dtype=torch.float64, generator=generator)
    ids = torch.randint(WORDS, (SEQUENCES, TOKENS), generator=generator)
    mask = torch.arange(TOKENS) < torch.randint(2, TOKENS, (SEQUENCES, 1), generator=generator)
    mask[4] = False
    return reference, candidate, ids, mask


def sums_for(name: str, noise: float, reduce: str = "token") -> SequenceSums:
    gate = Gate(metric=name, below=1.0, reduce=reduce)
    return token_metrics(*both_sides(noise)).sums(needed(declared(gate)))


def as_log(noise: float) -> dict[str, float]:
    """What `metrics` says of the same tokens: the candidate is the sampler."""
    reference, candidate, ids, mask = both_sides(noise)
    sequences: list[tuple[list[float], list[float]]] = []
    for row in range(SEQUENCES):
        at = [t for t in range(1, TOKENS) if bool(mask[row, t])]
        trainer, rollout = (
            [float(side[row, t - 1].log_softmax(-1)[ids[row, t]]) for t in at] for side in (reference, candidate)
        )
        sequences.append((rollout, trainer))
    return estimates(chunk(*sequences), names=list(gated_in_recipes()))


@pytest.fixture(scope="module")
def logged() -> dict[str, float]:
    return as_log(0.3)


@pytest.mark.parametrize("name", gated_in_recipes())
def test_a_recipe_gates_on_what_a_log_is_measured_by(name: str, logged: dict[str, float]) -> None:
    """Its distance from parity, with an interval around it."""
    value = sums_for(name, 0.3).gate_value(Gate(metric=name, below=1.0))
    distance = logged[name] - parity(METRICS[name])
    expected = abs(distance) if gated_name(name).startswith("|") else distance
    assert value.estimate == pytest.approx(expected, rel=1e-9, abs=1e-15)
    # Of a few rare events a bound may be infinite: that is what they can support.
    assert value.low <= value.estimate <= value.high
    assert value.method in {"bootstrap-t", "rule of three"} or METRICS[name].reduce.of in SHARES
    # The sequence without a scored token says nothing.
    assert value.sequences == SEQUENCES - 1


@pytest.mark.parametrize("name", gated_in_recipes())
def test_at_parity_the_distance_is_nothing(name: str) -> None:
    value = sums_for(name, 0.0).gate_value(Gate(metric=name, below=1.0))
    assert value.estimate == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("name", gated_in_recipes())
def test_a_token_that_is_not_finite_leaves_no_number(name: str) -> None:
    """Whatever a clamp or a threshold makes of NaN."""
    reference, candidate, ids, mask = both_sides(0.3)
    mask[0, 1] = True
    candidate[0, 0, 3] = math.nan
    gate = Gate(metric=name, below=1.0)
    sums = token_metrics(reference, candidate, ids, mask).sums(needed(declared(gate)))
    assert math.isnan(sums.gate_value(gate).estimate)
    assert sums.verdict(gate).status == "fail"


def test_a_mean_per_token_is_gated_per_sequence_too() -> None:
    """`reduce: sequence` is the metric that is declared as the mean over sequences."""
    value = sums_for("k3", 0.3, "sequence").gate_value(Gate(metric="k3", below=1.0, reduce="sequence"))
    assert value == sums_for("k3_sequence", 0.3).gate_value(Gate(metric="k3_sequence", below=1.0))
    assert value != sums_for("k3", 0.3).gate_value(Gate(metric="k3", below=1.0))


def test_the_names_say_which_distance_is_gated() -> None:
    names = ("k3", "k1", "mean_ratio", "token_mult_prob_error", "verl/rollout_is_mean")
    assert [gated_name(name) for name in names] == [
        "k3", "|k1|", "|mean_ratio - 1|", "token_mult_prob_error - 1", "|verl/rollout_is_mean - 1|",
    ]  # fmt: skip


def recipe_with(gate: str, folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        "kind: recipe\ncheckpoint: x\ntokens: {file: t.jsonl, sampled_from: candidate}\n"
        f"reference: {{profile: hf-eager}}\ncandidate: {{profile: hf-eager}}\ngate: {gate}\n",
        "utf-8",
    )
    return path


@pytest.mark.parametrize("name", METRICS)
def test_a_recipe_takes_every_metric_or_says_why_not(name: str, tmp_path: Path) -> None:
    path = recipe_with(f"{{metric: {name}, below: 1.5}}", tmp_path)
    if name in gated_in_recipes():
        assert reader.read_recipe(path).gate.metric == name
        return
    with pytest.raises(SpecError) as refused:
        reader.read_recipe(path)
    metric, message = METRICS[name], str(refused.value)
    if not metric.reduce.has_interval:
        assert "no interval over sequences" in message
    elif refusal(metric):
        assert "has no direction" in message
    else:
        assert name in gated()
        assert f"{name} needs {metric.needs[0]} of every token, which only a log has" in message
    assert all(metric_name in message for metric_name in gated_in_recipes())


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("{metric: mean_abs_detla, below: 1}", "'mean_abs_detla' is no metric; .*Did you mean 'mean_abs_delta'\\?$"),
        ("{metric: k3_kl, below: 1}", "'k3_kl' is no metric.*Did you mean 'verl/k3_kl'\\?$"),
        ("{metric: mean_ratio, below: 0.9}", "mean_ratio is 1 at parity; a bound above that is expected, not 0.9.$"),
        ("{metric: k3_sequence, below: 1, reduce: token}", "k3_sequence is a sequence mean already; leave `reduce`"),
    ],
)
def test_what_a_gate_cannot_be(gate: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        reader.read_recipe(recipe_with(gate, tmp_path))
